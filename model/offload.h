// What of a training step lies in the host's memory in place of the device's.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/base/words.h"

namespace tessera {

// The words of memory.offload, besides none
enum class Offloaded : uint8_t {
  kOptimizer,    // masters and moments, where the update reads and writes them
  kActivations,  // what blocks keep for their backward: activation_offload.h
};
constexpr auto words_of(Offloaded) {
  return std::array{Word{"optimizer", Offloaded::kOptimizer}, Word{"activations", Offloaded::kActivations}};
}

struct Offload {
  bool optimizer = false, activations = false;

  void add(Offloaded what) { (what == Offloaded::kOptimizer ? optimizer : activations) = true; }
  bool operator==(const Offload&) const = default;
  explicit operator bool() const { return optimizer || activations; }
};
// "none", or words with a plus between them: "optimizer+activations"
std::string text_of(const Offload& offload);

}  // namespace tessera
