// How the CPU backend's threads wait for one another.
#pragma once

namespace tessera {

// By default OpenMP's threads spin while they wait. On a machine with other work, or with a BLAS that has
// its own threads, they then take processor time from the threads that they wait for, and training gets
// several times slower. Sleeping instead costs a small model 5% on an idle machine. OpenMP reads
// OMP_WAIT_POLICY before main() begins, so this function sets it and executes the program again, unless the
// variable is set already. Call it first in main(). It also restores the name of the process.
void wait_without_spinning(char** argv);

}  // namespace tessera
