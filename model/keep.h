// Which tensors a forward keeps for its backward. Those that it does not keep share one place over all
// blocks: the backward runs their stages again, with the same operations and the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/base/words.h"

namespace tessera {

// The stages of a block, in the order of its forward; model/stages.h says what they are. Each can be run
// again from what earlier ones wrote.
enum class Stage : uint8_t {
  kNorm1,
  kQkv,  // and the rotation
  kAttention,
  kOut,         // W_O, and unless a norm follows, the residual
  kNorm1After,  // of blocks with norms after, and the residual
  kNorm2,
  kExpand,      // and, unless it is gated, the activation
  kActivation,  // of a gated MLP
  kContract,    // and the residual, unless a norm follows
  kRouter,      // of blocks with experts, as the four that follow: logits
  kChoices,     // of experts, and the rows of each
  kExperts,     // their first layers
  kExpertsActivation,
  kExpertsSum,  // their second layers, and as kContract
  kNorm2After,  // as kNorm1After
};
inline constexpr std::array kStages = {
    Stage::kNorm1,   Stage::kQkv,     Stage::kAttention,         Stage::kOut,        Stage::kNorm1After,
    Stage::kNorm2,   Stage::kExpand,  Stage::kActivation,        Stage::kContract,   Stage::kRouter,
    Stage::kChoices, Stage::kExperts, Stage::kExpertsActivation, Stage::kExpertsSum, Stage::kNorm2After};

// The words of train.recompute, besides none
enum class Recomputed : uint8_t {
  kNorms,
  kAttention,   // q, k, v, attention itself and W_O: the costliest
  kActivation,  // of a gated MLP
  kMlp,         // all of its hidden layer, with the norm before it
  kLinear,      // everything but attention's output and the block's: all linear layers and norms
  kBlock,       // everything but its output
};
constexpr auto words_of(Recomputed) {
  return std::array{Word{"norms", Recomputed::kNorms},           Word{"attention", Recomputed::kAttention},
                    Word{"activation", Recomputed::kActivation}, Word{"mlp", Recomputed::kMlp},
                    Word{"linear", Recomputed::kLinear},         Word{"block", Recomputed::kBlock}};
}

class Keep {
 public:
  constexpr Keep(std::initializer_list<Recomputed> recomputed = {}) {  // {}: everything is kept
    for (const Recomputed part : recomputed) add(part);
  }
  constexpr void add(Recomputed part) { parts_ |= 1 << static_cast<int>(part); }
  static constexpr Keep nothing() {  // of a forward without backward
    Keep keep;
    keep.parts_ = kNothing;
    return keep;
  }

  constexpr bool recomputes(Recomputed part) const { return parts_ >> static_cast<int>(part) & 1; }
  constexpr bool recomputes_any(Keep words) const { return (parts_ & words.parts_) != 0; }
  bool operator==(const Keep&) const = default;

 private:
  static constexpr unsigned kNothing = ~0u;
  unsigned parts_ = 0;  // a bit for each Recomputed
};
inline constexpr Keep kKeepAll{}, kKeepAllButMlp{Recomputed::kMlp}, kKeepAttention{Recomputed::kLinear},
    kKeepOutputs{Recomputed::kBlock};

// "none", or words with a plus between them: "norms+activation"
std::string text_of(Keep keep);

}  // namespace tessera
