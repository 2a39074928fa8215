// LoRA (Hu et al., arXiv:2106.09685): for each adapted linear layer W a run trains two small matrices A and
// B, and not W itself: y = x W^T + (alpha / rank) (x A^T) B^T.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "kernels/base/words.h"

namespace tessera {

// Which linear layers have adapters: the words of train.lora.parts
enum class Adapted : uint8_t { kAttention, kMlp, kRouter };  // kMlp: also experts
constexpr auto words_of(Adapted) {
  return std::array{Word{"attention", Adapted::kAttention}, Word{"mlp", Adapted::kMlp},
                    Word{"router", Adapted::kRouter}};
}

class AdaptedParts {
 public:
  static constexpr AdaptedParts of(std::initializer_list<Adapted> all) {
    AdaptedParts parts;
    for (const Adapted part : all) parts.add(part);
    return parts;
  }
  constexpr void add(Adapted part) { parts_ |= 1u << static_cast<int>(part); }
  constexpr bool names(Adapted part) const { return parts_ >> static_cast<int>(part) & 1; }
  constexpr explicit operator bool() const { return parts_ != 0; }
  bool operator==(const AdaptedParts&) const = default;

 private:
  unsigned parts_ = 0;  // a bit for each Adapted
};

// The form in which the frozen matrices of blocks are stored. train.teacher_base has all of these words,
// train.lora.base all but fp8.
enum class BaseForm : uint8_t {
  kAuto,  // the type in which they are multiplied: train.precision, or FP8 with train.gemm_dtype=fp8
  kFp8,   // only widened: they are multiplied in train.precision
  kNf4,
  kNf4Double,  // NF4 with scales in 8 bits
  kMxfp4,
};
constexpr auto words_of(BaseForm) {
  return std::array{Word{"auto", BaseForm::kAuto}, Word{"fp8", BaseForm::kFp8}, Word{"nf4", BaseForm::kNf4},
                    Word{"nf4_double", BaseForm::kNf4Double}, Word{"mxfp4", BaseForm::kMxfp4}};
}

// The matrices that a base in 4 bits applies to: the words of train.lora.base_parts
enum class LoraBaseParts : uint8_t {
  kAuto,     // kExperts if the base is MXFP4 and the model has experts, as gpt-oss does; else kBlocks
  kBlocks,   // all matrices of blocks, except routers
  kExperts,  // only the matrices of experts
};
constexpr auto words_of(LoraBaseParts) {
  return std::array{Word{"auto", LoraBaseParts::kAuto}, Word{"blocks", LoraBaseParts::kBlocks},
                    Word{"experts", LoraBaseParts::kExperts}};
}

struct LoraConfig {
  int64_t rank = 0;  // 0: no adapters
  double alpha = 16;
  AdaptedParts parts = AdaptedParts::of({Adapted::kAttention, Adapted::kMlp});
  // Whether q, k and v have an A each, and gate and up as well. False if the family's files have them as one
  // layer. Experts always have one A.
  bool split_qkv = true;

  bool operator==(const LoraConfig&) const = default;
  explicit operator bool() const { return rank > 0; }
  bool adapts(Adapted part) const { return rank > 0 && parts.names(part); }
  float scale() const { return static_cast<float>(alpha / static_cast<double>(rank)); }
};

}  // namespace tessera
