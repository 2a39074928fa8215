// Which tensors a forward keeps for its backward. All blocks share the memory of the tensors that are not
// kept: the backward runs their stages again, with the same operations and the same bits.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/base/words.h"

namespace tessera {

// The stages of a block, in the order of its forward; model/stages.h explains them. Each stage can be run
// again from what earlier stages wrote.
enum class Stage : uint8_t {
  kNorm1,
  kQkv,  // q, k and v, and the rotation
  kAttention,
  kOut,         // W_O; adds to the residual stream, unless a norm follows
  kNorm1After,  // in blocks with norms after; adds to the residual stream
  kNorm2,
  kExpand,      // also the activation, unless the MLP is gated
  kActivation,  // of a gated MLP
  kContract,    // adds to the residual stream, unless a norm follows
  kRouter,      // the logits of a router; this stage and the next four are in blocks with experts
  kChoices,     // the choice of experts, and the rows of each expert
  kExperts,     // the first layers of the experts
  kExpertsActivation,
  kExpertsSum,  // their second layers, and their sum; adds like kContract
  kNorm2After,  // like kNorm1After
};
inline constexpr std::array kStages = {
    Stage::kNorm1,   Stage::kQkv,     Stage::kAttention,         Stage::kOut,        Stage::kNorm1After,
    Stage::kNorm2,   Stage::kExpand,  Stage::kActivation,        Stage::kContract,   Stage::kRouter,
    Stage::kChoices, Stage::kExperts, Stage::kExpertsActivation, Stage::kExpertsSum, Stage::kNorm2After};

// The words of train.recompute, except `none`. Each says what is computed again
enum class Recomputed : uint8_t {
  kNorms,
  kAttention,   // q, k, v, attention itself and W_O: the most expensive
  kActivation,  // the activation of a gated MLP
  kMlp,         // the hidden layer of the MLP, with the norm before it
  kLinear,      // everything but the output of attention and that of the block: all linear layers and norms
  kBlock,       // everything but the output of the block
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
  static constexpr Keep nothing() {  // for a forward without a backward
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
