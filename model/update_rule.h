// UpdateRule: how an optimizer updates parameters. It has groups of parameters, each with the state that is
// kept for the group and the operation of a step. AdamW is one group (adamw.cpp). With Muon (muon.h) the
// matrices of the blocks are a group of their own. The optimizer, memory plans and checkpoints go through the
// groups, so another rule needs no change in them.
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
  uint64_t random_key = 0;  // for values that are rounded at random, see AdamW
};

// A tensor of state: a value for each element of a parameter, or with of_rows for each row of a matrix.
// Values of rows are in fp32, and every rank has all of them. Zero before the first step
struct StateTensor {
  std::string name;  // "first_moment"; in checkpoints it stands before the parameters' names
  DType dtype;
  bool of_rows = false;
};

// n elements of a bucket that lie side by side. All parts of a step have the same dtypes.
struct UpdatedPart {
  Tensor weights;             // [n] as the model reads them
  Tensor low;                 // [n] the lower bits of their masters, as in AdamW; none if weights are fp32
  Tensor gradient;            // [n]
  std::vector<Tensor> state;  // [n] each, in the order of ParamGroup::state, without state of rows
  int64_t decayed = 0;        // the elements before this one have weight decay
  uint64_t random_key = 0;
  int64_t first_element = 0;  // the index of the first element among the bucket's trained elements
};

struct UpdateStep {
  const OptimizerConfig& config;
  Tensor grad_norm;  // [R] fp32: the norms of R parts of the gradients, before clipping
  double learning_rate;
  int64_t number;       // from 1
  Tensor verdict = {};  // as in AdamW
};

// Asks for the sums of squares of what a step is about to do: see AdamWNorms
struct MeasuredRanges {
  std::span<const AdamWNorms::Range> ranges;  // of the step's parts
  Tensor sums;                                // [S, 3] fp32
};

inline constexpr const char* kRowSquares = "row_squares";

// How the matrices of the blocks are updated: see muon.h
struct MuonConfig {
  double momentum = 0.95;
  Orthogonal method = Orthogonal::kPolarExpress;
  bool variance = false;  // divides rows by their lengths over steps (NormaliseRows)
  double beta2 = 0.95;    // for the mean of the squares of these lengths
  bool cautious_decay = false;
  int64_t group_bytes =
      int64_t{128} << 20;  // bytes of directions that a rank has at a time; at least those of a block
  bool operator==(const MuonConfig&) const = default;
};

// Updates whole matrices, which may be cut by the parts of several ranks. It is made once for a store
class MatrixUpdate {
 public:
  virtual ~MatrixUpdate() = default;
  struct Update {
    const Stream& stream;
    const UpdateStep& step;
    std::function<UpdatedPart(size_t bucket)> part;  // returns the group's elements in this rank's part
    std::function<void(size_t bucket)> done;         // called when the matrices of a bucket are updated
    Tensor norms = {};                               // see Optimizer::Update
  };
  virtual bool updates(size_t bucket) const = 0;  // whether the bucket has matrices, in any rank's part
  virtual void run(const Update& update) = 0;     // calls done() for each such bucket
};

// Parameters that are updated in the same way. In each bucket they lie side by side
struct ParamGroup {
  bool (*has)(const ParamInfo& info);
  std::vector<StateTensor> state;
  // Updates parts of any elements; null: the group needs whole matrices
  void (*run)(const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step);
  // Called before run() with the same arguments; null: the sums cannot be computed
  void (*measure)(const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step,
                  const MeasuredRanges& ranges) = nullptr;
  std::function<std::unique_ptr<MatrixUpdate>(Arena& arena, ParamStore& store)> whole_matrices = {};
};

// Each parameter belongs to one group.
struct UpdateRule {
  std::string name;
  std::vector<ParamGroup> groups;

  std::vector<StateTensor> state() const;  // of all groups: each name once
  bool keeps(const std::string& name, const ParamInfo& info) const;
};

inline bool is_any(const ParamInfo& /*info*/) { return true; }  // ParamGroup::has for a rule with one group

// AdamW (Loshchilov and Hutter, arXiv:1711.05101), with moments in fp32 or bf16
UpdateRule adamw(DType moments = DType::kF32);
// Muon for the matrices of the blocks, whose first moment is the mean of their gradients, and AdamW for all
// other parameters
UpdateRule muon(const MuonConfig& config, DType moments = DType::kF32);

}  // namespace tessera
