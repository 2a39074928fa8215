// UpdateRule: how an optimizer updates parameters: groups of them, each with the tensors that are kept for
// it and the op of a step. AdamW is one group (adamw.cpp); with Muon (muon.h) the matrices of the blocks
// are another. The optimizer, memory plans and checkpoints walk the groups, so that another rule needs no
// change there.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/base/words.h"
#include "kernels/stream.h"
#include "model/part.h"

namespace tessera {

class ParamStore;

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

// A value for each element of a parameter, or for each row of a matrix: in fp32, and every rank has all.
// Zero before the first step
struct StateTensor {
  std::string name;  // "first_moment"; checkpoints have it before the parameters' names
  DType dtype;
  bool of_rows = false;
};

// n elements of a bucket that lie side by side. All parts of a step have the same dtypes.
struct UpdatedPart {
  Tensor weights;             // [n] that the model reads
  Tensor low;                 // [n] the lower bits of their masters, as AdamW's; none where they are fp32
  Tensor gradient;            // [n]
  std::vector<Tensor> state;  // [n] each, in the order of ParamGroup::state, without those of rows
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

// Updates whole matrices, which may lie in several ranks' parts of a bucket: made once for a store
class MatrixUpdate {
 public:
  virtual ~MatrixUpdate() = default;
  struct Update {
    const Stream& stream;
    const UpdateStep& step;
    std::function<UpdatedPart(size_t bucket)> part;  // of the group's elements
    std::function<void(size_t bucket)> done;         // when the matrices of a bucket are updated
    Tensor norms = {};                               // Optimizer::Update's
  };
  virtual bool updates(size_t bucket) const = 0;  // some rank's part has matrices
  virtual void run(const Update& update) = 0;     // calls done() for each of these buckets
};

// Parameters that are updated alike, which lie side by side in each bucket
struct ParamGroup {
  bool (*has)(const ParamInfo& info);
  std::vector<StateTensor> state;
  // Updates any elements; null: the group needs whole matrices
  void (*run)(const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step);
  // Before run() with the same arguments; null: nobody can ask
  void (*measure)(const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step,
                  const MeasuredRanges& ranges) = nullptr;
  std::function<std::unique_ptr<MatrixUpdate>(Arena& arena, ParamStore& store)> whole_matrices = {};
};

// Each parameter is of one group.
struct UpdateRule {
  std::string name;
  std::vector<ParamGroup> groups;

  std::vector<StateTensor> state() const;  // of all groups: each name once
  bool keeps(const std::string& name, const ParamInfo& info) const;
};

inline bool is_any(const ParamInfo& /*info*/) { return true; }  // ParamGroup::has of a rule with one group

// AdamW (Loshchilov and Hutter, arXiv:1711.05101), with moments in fp32 or bf16
UpdateRule adamw(DType moments = DType::kF32);
// Muon for the matrices of the blocks, whose first moment is the mean of their gradients, and AdamW for the
// others
UpdateRule muon(const MuonConfig& config, DType moments = DType::kF32);

}  // namespace tessera
