// How fast the ranks of a run send to one another.
#pragma once

namespace tessera {

struct LinkRates {                 // bytes/s that each rank sends while all ranks send; 0: not known
  double within = 0, between = 0;  // to ranks of its own machine, and to ranks of other machines
  bool operator==(const LinkRates&) const = default;
};

}  // namespace tessera
