// How fast the ranks of a run send to one another.
#pragma once

namespace tessera {

struct LinkRates {                 // bytes/s that each rank sends, while all do; 0: not known
  double within = 0, between = 0;  // a machine, and machines
  bool operator==(const LinkRates&) const = default;
};

}  // namespace tessera
