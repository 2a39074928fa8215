#include "model/offload.h"

namespace tessera {

std::string text_of(const Offload& offload) {
  if (offload.optimizer && offload.activations)
    return fmt::format("{}+{}", name_of(Offloaded::kOptimizer), name_of(Offloaded::kActivations));
  return offload.optimizer     ? name_of(Offloaded::kOptimizer)
         : offload.activations ? name_of(Offloaded::kActivations)
                               : "none";
}

}  // namespace tessera
