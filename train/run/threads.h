// How the CPU backend's threads wait for one another.
#pragma once

namespace tessera {

// By default OpenMP's threads spin while they wait. If other programs are running, or if a BLAS has threads
// of its own, spinning threads take processor time from the threads that they wait for, and training gets
// several times slower. Sleeping instead costs a small model 5% on an idle machine. OpenMP reads
// OMP_WAIT_POLICY before main() begins. So this function sets the variable, unless it is already set, and
// executes the program again. Call it first in main(). It also restores the name of the process.
void wait_without_spinning(char** argv);

}  // namespace tessera
