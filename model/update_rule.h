// UpdateRule: how an optimizer updates parameters: the tensors that it keeps for them, and the op of a step.
// AdamW is one rule (adamw.cpp), Muon another (muon.h). The optimizer, memory plans and checkpoints walk the
// names of its tensors, so that another rule needs no change there.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/words.h"
#include "kernels/stream.h"

namespace tessera {

// The polynomials that make a matrix orthogonal: see muon.cpp
enum class Orthogonal : uint8_t { kPolarExpress, kNewtonSchulz };
constexpr auto words_of(Orthogonal) {  // of optimizer.muon.method
  return std::array{Word{"polar_express", Orthogonal::kPolarExpress},
                    Word{"newton_schulz", Orthogonal::kNewtonSchulz}};
}

struct OptimizerConfig {
  double beta1, beta2, epsilon;
  double weight_decay;      // of matrices; norms and biases do not decay
  double max_grad_norm;     // 0: no clipping
  uint64_t random_key = 0;  // of what is rounded at random, see AdamW
};

// Which trained parameters a tensor of the optimizer has values for
enum class StateOf : uint8_t {
  kAll,
  kOthers,  // all but the matrices of the blocks: is_matrix_of_block()
  kRows,    // a value for each row of these; every rank has all, in fp32
};

// One value for each element, or each row. Zero before the first step
struct StateTensor {
  std::string name;  // "first_moment"; checkpoints have it before the parameters' names
  DType dtype;
  StateOf of = StateOf::kAll;
};

// n elements of a bucket that lie side by side. All parts of a step have the same dtypes.
struct UpdatedPart {
  Tensor weights;             // [n] that the model reads
  Tensor low;                 // [n] the lower bits of their masters, as AdamW's; none where they are fp32
  Tensor gradient;            // [n]
  std::vector<Tensor> state;  // [n] each, in the order of UpdateRule::state; none: of other elements
  int64_t decayed = 0;        // elements before this have weight decay
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

inline constexpr const char* kRowSquares = "row_squares";

// How the matrices of the blocks are updated: see muon.h
struct MuonConfig {
  double momentum = 0.95;
  Orthogonal method = Orthogonal::kPolarExpress;
  bool variance = false;  // rows are divided by their lengths over steps (NormaliseRows)
  double beta2 = 0.95;    // of the mean of their squares
  bool cautious_decay = false;
  int64_t group_bytes =
      int64_t{128} << 20;  // of directions that a rank has at a time, but at least a block's
  bool operator==(const MuonConfig&) const = default;
};

struct UpdateRule {
  std::string name;
  std::vector<StateTensor> state;
  std::optional<MuonConfig> muon = {};  // set: run() updates the others alone
  void (*run)(const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step);
  // Before run() with the same arguments; none: nobody can ask
  void (*measure)(const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step,
                  const MeasuredRanges& ranges) = nullptr;
};

// AdamW (Loshchilov and Hutter, arXiv:1711.05101), with moments in fp32 or bf16
UpdateRule adamw(DType moments = DType::kF32);
// Muon for the matrices of the blocks, whose first moment is the mean of their gradients, and AdamW for the
// others
UpdateRule muon(const MuonConfig& config, DType moments = DType::kF32);

}  // namespace tessera
