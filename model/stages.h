// The stages of a block: all that is known of each stands in one row of the table; the rows are in
// model/stages/, by part: norm.cpp, attention.cpp, mlp.cpp. Training, recomputation, what is saved, FP8 and
// decoding go through the table; a new stage is a new row, and a new kind of stage other functions in a row.
//
// A stage is done by functions of three forms, side by side:
//   forward    reads what earlier stages saved, and writes what it saves
//   backward   reads and overwrites what the forward saved. An input of a linear layer that is not read
//              again is overwritten by its gradient
//   decode     adds the stage to the operations of a decode step. A stage without this form is computed by
//              its forward, and so is the whole step
//
// Neighbours. The stage that writes a tensor can do work for the linear layer that reads it, and spare it
// a pass over the tensor. In a forward the reader is the next stage, in a backward the one before, or the
// last stage of the block below. A row states what a stage offers (Offers), a linear layer takes what it
// needs of that, and between() alone decides whether they match, and knows why not. A stage with several
// linear layers takes nothing.
//
// Chunks. With Model::mlp_chunk the stages of the MLP, the last ones, run over so many rows at a time, one
// chunk after another: their hidden layer exists for only one chunk. Everything else runs over all rows.
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

// A block in a pass, with its weights on lease
struct Block {
  Block(const Pass& pass, const Saved& saved, size_t layer, LeaseFor use = LeaseFor::kForward);
  // Of some rows, for the stages of the MLP; the lease is `whole`'s
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
  LinearLayer linear(Stage stage, size_t which = 0) const;  // of the stage's linear layers
  Dropout dropout(DropoutKind kind) const { return branch_dropout(pass, kind, layer); }
};

// What a block's backward has besides what the forward saved
struct BlockGradients {
  const BlockParams& w;  // gradients of the weights
  bool accumulate;       // they are added to; else overwritten
  Tensor d;              // [N, C]: on entry the gradient of the block's output, in the end that of its input
  // [N, C], of what a branch has added: d itself, or where a branch is dropped or normed, a tensor
  Tensor branch;
  Tensor attention_output;  // like saved.attention.output
  Tensor qkv;               // like saved.attention.qkv
  Tensor attention_workspace;
  ContextBackward context;  // where a context has several ranks
};

// What the writer of a tensor does for its reader. In a forward the tensor is the reader's x, in a
// backward its dy.
struct Handover {
  const Fp8Linear* fp8 = nullptr;  // the reader's, if the writer writes the tensor in FP8 as well
  Tensor bias = {};  // the gradient of the reader's bias, if the writer sums it: not in a forward

  Fp8Output x(const Tensor& tensor) const { return fp8 ? fp8->x_output(tensor) : Fp8Output{}; }
  Fp8Output dy(const Tensor& tensor) const { return fp8 ? fp8->dy_output(tensor) : Fp8Output{}; }
};
struct Neighbours {
  Handover to_reader, from_writer;
  // The gradient of the stage's own bias, as far as it is left to be summed
  Tensor own_bias(const Tensor& gradient) const { return from_writer.bias ? Tensor{} : gradient; }
};

// What a stage can do for the reader of what it writes
struct Offers {
  bool fp8_y = false;   // forward: y in FP8 as well
  bool fp8_dx = false;  // backward: dx in FP8 as well
  bool dx_sum = false;  // backward: the sum of dx's rows, which is the gradient of the reader's bias
};

// A tensor that a forward keeps
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
  int64_t mlp_chunk = 0;  // see Model

  int64_t rows() const { return plan.shape.batch * plan.shape.tokens; }  // N
  int64_t hidden_rows() const { return rows_at_a_time(mlp_chunk, rows()); }
};

// What a stage adds to the residual stream: sum = add + dropout(branch). Without dropout its GEMM adds;
// otherwise it writes the branch to `sum`.
struct BranchOfStage {
  DropoutKind dropout;
  const Tensor& (*add)(const Block&);
  const Tensor& (*sum)(const Block&);
};

// A stage in a decode step
struct DecodeForm {
  void (*add)(const Block&, DecodeBuilder&) = nullptr;  // its operations; none: the stage before computes it
  // What of the stage they do not compute; empty: they compute all of it. None: they always do
  std::string (*lacks)(const ModelConfig&) = nullptr;
};

struct StageRow {
  Stage stage;
  const char* name;
  Keep dropped_by = {};  // the words of train.recompute with which the forward does not keep what it saves
  bool (*exists)(const BlockSpec&) = nullptr;  // in a block; none: always
  // Its linear layers, and its other weights; none: it has none
  std::vector<LinearOfStage> (*linears)(const ModelConfig&, const BlockSpec&) = nullptr;
  std::vector<VectorOfStage> (*vectors)(const ModelConfig&, const BlockSpec&) = nullptr;
  bool in_chunks = false;  // with Model::mlp_chunk it runs over some rows at a time, as all stages after it
  std::optional<BranchOfStage> branch = {};
  Offers (*offers)(const BlockSpec&) = nullptr;

  void (*saved)(BlockSaved&, const SavedShape&, const TakeSaved&);
  void (*forward)(const Block&, const Neighbours&);
  void (*backward)(const Block&, const BlockGradients&, const Neighbours&);
  std::optional<DecodeForm> decode = {};  // none: a decode step of such a block is a forward of training
};

const StageRow& row_of(Stage stage);
Offers offers_of(const StageRow& row, const BlockSpec& spec);
bool covers(Keep keep, Keep other);  // whether `keep` recomputes all that `other` recomputes

// Runs the stages of a block whose results `kept` does not keep: all of them with Keep::nothing(), else, with
// Model::mlp_chunk, none of the MLP: backward_stages() runs these, chunk by chunk.
void forward_stages(const Block& block, Keep kept);
// Whether what a block does not keep is computed again before its backward: a block after it has written over
// some of that. Of the blocks with the same Model::keep, the last one does not run again.
bool runs_again(const Model& model, size_t layer);
// All stages in reverse
struct BlockBackward {
  const GradientScope<BlockParams>& gradients;
  const GradientScope<BlockParams>& below;  // of the block below; a scope of nothing: there is none
  Tensor d;                                 // the gradient of residual_out on entry, of x on return
};
void backward_stages(Arena& arena, const Block& block, const BlockBackward& backward);
// What of a block no operation of a decode step computes; empty: they compute all of it
std::string why_no_decode(const BlockKind& kind, const ModelConfig& config);
// The operations of a block of a decode step. Error: a stage has none
void decode_stages(const Block& block, DecodeBuilder& to);

// Between the stage that writes x and `reader`, in a forward that runs all stages but those of `kept`
Handover between(const Block& block, const StageRow& reader, Keep kept);
// Between the stage that writes dy and its reader, in a backward
struct DyReader {
  size_t layer;
  const BlockParams& gradients;  // of the block
  const StageRow& row;
};
Handover between(const Pass& pass, const DyReader& reader);
// To the last stage of the block below a block, or below the final norm, layer L: its dy is their dx.
// `gradients`: of the block below; null: there is none
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
