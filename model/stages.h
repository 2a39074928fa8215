// The stages of a block. Everything about a stage stands in one row of a table; the rows are in
// model/stages/, in a file for each part: norm.cpp, attention.cpp, mlp.cpp, experts.cpp. Training,
// recomputation, what is saved, FP8 and decoding go through the table. A new stage is a new row, and a new
// variant of a stage is a row with other functions.
//
// A stage has functions of three forms:
//   forward    reads what earlier stages saved, and writes what it saves
//   backward   reads and overwrites what the forward saved. An input of a linear layer that is not read
//              again is overwritten by its gradient
//   decode     adds the stage to the operations of a decode step. If a stage of the model has no such form,
//              the whole step is computed by the forward
//
// Neighbours. The stage that writes a tensor can do work for the linear layer that reads it, and so save a
// pass over the tensor. In a forward the reader is the next stage; in a backward it is the stage before, or
// the last stage of the block below. A row states what a stage offers (Offers), and a linear layer takes what
// it needs of that. Only between() decides whether the two match. A stage with several linear layers takes
// nothing.
//
// Chunks. With Model::mlp_chunk the stages of the MLP, which are the last ones, run over some rows at a time,
// one chunk after another: so their hidden layer exists only for one chunk. All other stages run over all
// rows.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/decode_builder.h"
#include "model/lora.h"
#include "model/model.h"
#include "model/saved_tensors.h"

namespace tessera {

// A block in a pass, with a lease of its weights
struct Block {
  Block(const Pass& pass, const Saved& saved, size_t layer, LeaseFor use = LeaseFor::kForward);
  // Some rows of a block, for the stages of the MLP; the lease stays with `whole`
  Block(const Block& whole, const BlockSaved& rows);

  const Pass& pass;
  const Stream& stream;
  const ModelConfig& config;
  size_t layer;
  const BlockKind& kind;
  const BlockSpec& spec;
  WeightLease<BlockParams> lease;
  const BlockParams& w;  // of the lease
  const BlockSaved& s;
  const Tensor& x;  // [N, C]
  const Tensor& attention_workspace;
  const ContextBuffers& context_buffers;
  const Tensor& expert_rows;

  Norm norm1() const;
  Norm norm2() const;
  Attention attention() const;
  LinearLayer linear(Stage stage, size_t which = 0) const;  // `which`: among the stage's linear layers
  Dropout dropout(DropoutKind kind) const { return branch_dropout(pass, kind, layer); }
};

// What the backward of a block has besides what the forward saved
struct BlockGradients {
  const BlockParams& w;  // the gradients of the weights
  bool accumulate;       // whether these are added to; else they are overwritten
  Tensor d;              // [N, C]: on entry the gradient of the block's output, at the end that of its input
  // [N, C], the gradient of what a branch has added: d itself, or a tensor of its own if a branch is dropped
  // or normed
  Tensor branch;
  Tensor attention_output;  // like saved.attention.output
  Tensor qkv;               // like saved.attention.qkv
  Tensor attention_workspace;
  ContextBackward context;  // if a context has several ranks
};

// What the writer of a tensor does for the reader of it. In a forward the tensor is the reader's x, in a
// backward its dy.
struct Handover {
  const Fp8Linear* fp8 = nullptr;  // the reader's, if the writer writes the tensor in FP8 as well
  Tensor bias = {};  // the gradient of the reader's bias, if the writer sums it; none in a forward

  Fp8Output x(const Tensor& tensor) const { return fp8 ? fp8->x_output(tensor) : Fp8Output{}; }
  Fp8Output dy(const Tensor& tensor) const { return fp8 ? fp8->dy_output(tensor) : Fp8Output{}; }
};
struct Neighbours {
  Handover to_reader, from_writer;
  // The gradient of the stage's own bias, if it is still to be summed
  Tensor own_bias(const Tensor& gradient) const { return from_writer.bias ? Tensor{} : gradient; }
};

// What a stage can do for the reader of its result
struct Offers {
  bool fp8_y = false;   // forward: y in FP8 as well
  bool fp8_dx = false;  // backward: dx in FP8 as well
  bool dx_sum = false;  // backward: the sum of dx's rows, the gradient of the reader's bias
};

// A tensor that a forward saves
struct SavedInfo {
  const char* name;
  DType dtype;
  Shape shape;
  MemoryTag tag = MemoryTag::kActivations;
};
using TakeSaved = std::function<void(const SavedInfo&, Tensor&)>;

// What the shapes of a block's saved tensors depend on
struct SavedShape {
  const ModelConfig& config;
  const BlockKind& kind;
  const AttentionPlan& plan;
  int64_t mlp_chunk = 0;  // Model::mlp_chunk

  int64_t rows() const { return plan.shape.batch * plan.shape.tokens; }  // N
  int64_t hidden_rows() const { return rows_at_a_time(mlp_chunk, rows()); }
};

// What a stage adds to the residual stream: sum = add + dropout(branch). Without dropout the stage's GEMM
// does the addition; with dropout it writes the branch to `sum`.
struct BranchOfStage {
  DropoutKind dropout;
  const Tensor& (*add)(const Block&);
  const Tensor& (*sum)(const Block&);
};

// A stage in a decode step
struct DecodeForm {
  void (*add)(const Block&, DecodeBuilder&) = nullptr;  // adds its operations; null: the stage before
                                                        // computes it
  // What these operations cannot compute of the stage; empty: they compute all of it. Null: they always do
  std::string (*lacks)(const ModelConfig&) = nullptr;
};

struct StageRow {
  Stage stage;
  const char* name;
  Keep dropped_by = {};  // with these words of train.recompute the forward does not keep what the stage saves
  bool (*exists)(const BlockSpec&) = nullptr;  // whether a block has this stage; null: always
  // Its linear layers, and its other weights; null: it has none
  std::vector<LinearOfStage> (*linears)(const ModelConfig&, const BlockSpec&) = nullptr;
  std::vector<VectorOfStage> (*vectors)(const ModelConfig&, const BlockSpec&) = nullptr;
  bool in_chunks = false;  // with Model::mlp_chunk it runs in chunks of rows, and so do all stages after it
  std::optional<BranchOfStage> branch = {};
  Offers (*offers)(const BlockSpec&) = nullptr;

  void (*saved)(BlockSaved&, const SavedShape&, const TakeSaved&);
  void (*forward)(const Block&, const Neighbours&);
  void (*backward)(const Block&, const BlockGradients&, const Neighbours&);
  std::optional<DecodeForm> decode = {};  // nullopt: a decode step is computed by the forward of training
};

const StageRow& row_of(Stage stage);
Offers offers_of(const StageRow& row, const BlockSpec& spec);
bool covers(Keep keep, Keep other);  // whether `keep` recomputes all that `other` recomputes

// Runs the stages of a block whose results `kept` does not keep. With Keep::nothing() these are all stages.
// Otherwise, with Model::mlp_chunk, the stages of the MLP are left out: backward_stages() runs these, chunk
// by chunk.
void forward_stages(const Block& block, Keep kept);
// Whether the stages that a block does not keep have to run again before its backward, because a later block
// has overwritten some of their results. The last of the blocks with the same Model::keep does not run again.
bool runs_again(const Model& model, size_t layer);
// Runs the backward of all stages, in reverse order
struct BlockBackward {
  const GradientScope<BlockParams>& gradients;
  const GradientScope<BlockParams>& below;  // of the block below; an empty scope if there is none
  Tensor d;                                 // the gradient of residual_out on entry, of x on return
};
void backward_stages(Arena& arena, const Block& block, const BlockBackward& backward);
// What the operations of a decode step cannot compute of a block; empty: they compute all of it
std::string why_no_decode(const BlockKind& kind, const ModelConfig& config);
// Adds the operations of a block of a decode step. Error: a stage has none
void decode_stages(const Block& block, DecodeBuilder& to);

// What the writer of x does for `reader`, in a forward that runs all stages except those that `kept` keeps
Handover between(const Block& block, const StageRow& reader, Keep kept);
// What the writer of dy does for its reader, in a backward
struct DyReader {
  size_t layer;
  const BlockParams& gradients;  // of the reader's block
  const StageRow& row;
};
Handover between(const Pass& pass, const DyReader& reader);
// What the writer of dx does for the last stage of the block below, whose dy it is. The writer is the first
// stage of block `layer`, or the final norm if layer is L. `gradients`: of the block below; null: there is
// none
Handover to_block_below(const Pass& pass, size_t layer, const BlockParams* gradients);

// Calls visit(stage, info, tensor) for every saved tensor of a block.
void visit_block_saved(BlockSaved& block, const SavedShape& shape,
                       const std::function<void(Stage, const SavedInfo&, Tensor&)>& visit);

struct NormSavedInfo {
  NormKind kind;
  Shape shape;  // of y
  DType dtype;
  std::array<const char*, 3> names;  // of y, mean and rstd
};
void visit_norm_saved(NormSaved& norm, const NormSavedInfo& info, const TakeSaved& take);

}  // namespace tessera
