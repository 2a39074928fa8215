// Measures how fast the ranks of a run send to one another, within a machine and from machine to machine.
#pragma once

#include "kernels/backend.h"
#include "kernels/base/link_rates.h"

namespace tessera {

class Mesh;

// Gathers 16 MiB from each rank, first over the ranks of each machine, then from machine to machine. `mesh`
// has a replica on each machine. All ranks call it; each gets its own rates, 0 where it is the only rank of
// its machine.
LinkRates measure_links(Backend& be, const Mesh& mesh);

}  // namespace tessera
