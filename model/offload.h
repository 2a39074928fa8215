// Which data of a training step lie in the host's memory in place of the device's.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "kernels/base/words.h"

namespace tessera {

// The words of memory.offload, except none
enum class Offloaded : uint8_t {
  kOptimizer,    // moments and lower bits of masters, which the update reads and writes there
  kActivations,  // what all blocks, or the first ones, save for their backward: activation_offload.h
  kWeights,      // copied to the device block by block: store/weight_home.h
  kGradients,    // copied block by block, in both directions: store/gradient_home.h
};
constexpr auto words_of(Offloaded) {
  return std::array{Word{"optimizer", Offloaded::kOptimizer}, Word{"activations", Offloaded::kActivations},
                    Word{"weights", Offloaded::kWeights}, Word{"gradients", Offloaded::kGradients}};
}

struct Offload {
  static constexpr int64_t kAllBlocks = std::numeric_limits<int64_t>::max();

  bool optimizer = false, activations = false, weights = false, gradients = false;
  int64_t blocks = kAllBlocks;  // with activations: how many of the first blocks are offloaded

  bool has(Offloaded what) const { return this->*field(what); }
  void add(Offloaded what) { this->*field(what) = true; }
  bool operator==(const Offload&) const = default;
  explicit operator bool() const { return optimizer || activations || weights || gradients; }

 private:
  static constexpr bool Offload::*field(Offloaded what) {
    return what == Offloaded::kOptimizer     ? &Offload::optimizer
           : what == Offloaded::kActivations ? &Offload::activations
           : what == Offloaded::kWeights     ? &Offload::weights
                                             : &Offload::gradients;
  }
};
// "none", or words with a plus between them: "optimizer+activations*12"
std::string text_of(const Offload& offload);

}  // namespace tessera
