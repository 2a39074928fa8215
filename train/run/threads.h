// How the CPU backend's threads wait for one another.
#pragma once

namespace tessera {

// By default OpenMP's threads spin while they wait. On a machine that runs anything else, or with a BLAS that
// has threads of its own, they then take the processors from those they wait for: training gets several times
// slower. Sleeping instead costs a small model 5% on an idle machine. OpenMP reads OMP_WAIT_POLICY before
// main() begins, so this sets it and starts the program once more, unless the variable is set already. Call
// it first in main(). The process is named after its program again.
void wait_without_spinning(char** argv);

}  // namespace tessera
