// Shards: which of a model's data the ranks of a run split among them (ZeRO; Rajbhandari et al.,
// arXiv:1910.02054). Each stage includes the stages before it.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class Shard : uint8_t {
  kNone,       // every rank has everything
  kOptimizer,  // stage 1: moments and lower bits of masters
  kGradients,  // stage 2: also gradients
  kWeights,    // stage 3: also weights
};
constexpr auto words_of(Shard) {  // of parallel.shard
  return std::array{Word{"none", Shard::kNone}, Word{"optimizer", Shard::kOptimizer},
                    Word{"gradients", Shard::kGradients}, Word{"weights", Shard::kWeights}};
}

struct Shards {
  Shard what = Shard::kNone;
  int64_t parts = 1;  // one for each rank

  bool of(Shard kind) const { return parts > 1 && what >= kind; }
  bool optimizer() const { return of(Shard::kOptimizer); }
  bool gradients() const { return of(Shard::kGradients); }
  bool weights() const { return of(Shard::kWeights); }
  bool operator==(const Shards&) const = default;
};

}  // namespace tessera
