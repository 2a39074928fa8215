// Starts a run's ranks on this machine: ./train with several GPUs, without torchrun.
#pragma once

namespace tessera {

// Runs this program once more for every rank, with the same arguments and with torchrun's variables set, so
// that world_of_environment() finds a world in it. Waits for all ranks and returns the exit code: 0 if every
// rank exited with 0; otherwise that of the first rank that failed, or 128 plus the number of the signal that
// killed it.
//
//   - stderr of every rank, and stdout of all but rank 0, are printed line by line after "rank 3: ".
//   - SIGINT and SIGTERM are forwarded to all ranks.
//   - When a rank fails, the watchdogs of the others end them, or the launcher kills them after 3 s. A rank
//     that exits prints its own error; if a signal kills it, or it ends early without an error, the launcher
//     prints one.
//   - Ranks do not outlive the launcher: if it is killed, they are.
//   - TESSERA_SECRET, new random bytes, lets rank 0 tell its ranks from other programs.
//   - OMP_NUM_THREADS, unless it is set, shares this machine's processors among the ranks.
//
// Call it from the main thread, before there are other threads. Error: a rank cannot be started; then no rank
// is left running.
int launch(int ranks, char** argv);

}  // namespace tessera
