// UpdateRule: how an optimizer updates parameters: the tensors that it keeps for them, and the op of a step.
// AdamW is one rule (adamw.cpp). The optimizer, memory plans and checkpoints walk the names of its tensors,
// so that another rule needs no change there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/stream.h"

namespace tessera {

struct OptimizerConfig {
  double beta1, beta2, epsilon;
  double weight_decay;      // of matrices; norms and biases do not decay
  double max_grad_norm;     // 0: no clipping
  uint64_t random_key = 0;  // of what is rounded at random, see AdamW
};

// One value for each trained element. Zero before the first step
struct StateTensor {
  std::string name;  // "first_moment"; checkpoints have it before the parameters' names
  DType dtype;
};

// n elements of a bucket that lie side by side. All parts of a step have the same dtypes.
struct UpdatedPart {
  Tensor weights;                 // [n] that the model reads
  Tensor low;                     // [n] the lower bits of their masters, as AdamW's; none where they are fp32
  Tensor gradient;                // [n]
  std::span<const Tensor> state;  // [n] each, in the order of UpdateRule::state
  int64_t decayed = 0;            // elements before this have weight decay
  uint64_t random_key = 0;
  int64_t first_element = 0;  // in the trained elements of the bucket
};

struct UpdateStep {
  const OptimizerConfig& config;
  Tensor grad_norm;  // [R] fp32: the norms of R parts of the gradients, before clipping
  double learning_rate;
  int64_t number;       // from 1
  Tensor verdict = {};  // as AdamW's
};

// For the sums of squares of what a step is about to do: see AdamWNorms
struct MeasuredRanges {
  std::span<const AdamWNorms::Range> ranges;  // of the step's parts
  Tensor sums;                                // [S, 3] fp32
};

struct UpdateRule {
  std::string name;
  std::vector<StateTensor> state;
  bool whole_matrices = false;  // no matrix may be cut into parts
  void (*run)(const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step);
  // Before run() with the same arguments; none: nobody can ask
  void (*measure)(const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step,
                  const MeasuredRanges& ranges) = nullptr;
};

// AdamW (Loshchilov and Hutter, arXiv:1711.05101), with moments in fp32 or bf16
UpdateRule adamw(DType moments = DType::kF32);

}  // namespace tessera
