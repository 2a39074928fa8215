// Which tensors a forward keeps for its backward. Those that it does not keep share one place over all
// blocks: the backward runs their stages again, with the same operations and the same bits.
#pragma once

#include <initializer_list>
#include <string>

#include "model/part.h"

namespace tessera {

// The words of train.recompute, besides none
enum class Recomputed : uint8_t {
  kNorms,
  kAttention,   // q, k, v, attention itself and W_O: the costliest
  kActivation,  // of a gated MLP
  kMlp,         // all of its hidden layer, with the norm before it
  kBlock,       // everything but its output
};
constexpr auto words_of(Recomputed) {
  return std::array{Word{"norms", Recomputed::kNorms}, Word{"attention", Recomputed::kAttention},
                    Word{"activation", Recomputed::kActivation}, Word{"mlp", Recomputed::kMlp},
                    Word{"block", Recomputed::kBlock}};
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
  constexpr bool keeps(Stage stage) const { return !(parts_ & parts_with(stage)); }
  // Whether this recomputes all that `other` recomputes
  constexpr bool covers(Keep other) const {
    for (const Stage stage : kStages)
      if (keeps(stage) && !other.keeps(stage)) return false;
    return true;
  }
  bool operator==(const Keep&) const = default;

 private:
  static constexpr unsigned kNothing = ~0u;
  static constexpr unsigned parts_with(Stage stage) {
    const auto bits = [](std::initializer_list<Recomputed> parts) { return Keep(parts).parts_; };
    switch (stage) {
      case Stage::kNorm1:
        return bits({Recomputed::kNorms, Recomputed::kBlock});
      case Stage::kQkv:
      case Stage::kAttention:
      case Stage::kOut:
        return bits({Recomputed::kAttention, Recomputed::kBlock});
      case Stage::kNorm2:
        return bits({Recomputed::kNorms, Recomputed::kMlp, Recomputed::kBlock});
      case Stage::kExpand:
        return bits({Recomputed::kMlp, Recomputed::kBlock});
      case Stage::kActivation:
        return bits({Recomputed::kActivation, Recomputed::kMlp, Recomputed::kBlock});
      case Stage::kContract:
        return 1u << 31;  // of nothing() alone
    }
    return 0;
  }

  unsigned parts_ = 0;  // a bit for each Recomputed
};
inline constexpr Keep kKeepAll{}, kKeepAllButMlp{Recomputed::kMlp}, kKeepOutputs{Recomputed::kBlock};

// "none", or words with a plus between them: "norms+activation"
std::string text_of(Keep keep);

}  // namespace tessera
