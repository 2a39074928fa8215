// The rows of the table of stages, by the part of a block that they are in: norm.cpp, attention.cpp, mlp.cpp,
// experts.cpp. Also functions that their stages share.
#pragma once

#include "model/stages.h"

namespace tessera {

extern const StageRow kNorm1Row, kNorm1AfterRow, kNorm2Row, kNorm2AfterRow;
extern const StageRow kQkvRow, kAttentionRow, kOutRow;
extern const StageRow kExpandRow, kActivationRow, kContractRow;
extern const StageRow kRouterRow, kChoicesRow, kExpertsRow, kExpertsActivationRow, kExpertsSumRow;

constexpr int buffer_of(Stage stage) { return static_cast<int>(stage); }  // in a decode step, see DecodeOp

// What a branch reads: the output of its norm, or the residual stream if no norm comes before it. In the
// backward the gradient of what its first layer reads overwrites the norm's output, or is added to the
// gradient of the stream.
inline const Tensor& read_by(const Block& b, const Tensor& normed, const Tensor& stream) {
  return b.spec.norms_before() ? normed : stream;
}

// What a linear layer adds to the residual stream by itself; none if dropout or a norm follows
inline Tensor residual_of(const Block& b, DropoutKind kind, const Tensor& residual) {
  return b.dropout(kind) || b.spec.norms_after() ? Tensor{} : residual;
}

// The columns that the adapter of a stage's linear layer saves for the backward; 0: there is no adapter
inline int64_t adapter_columns(const SavedShape& shape, Stage stage, size_t which = 0) {
  const Linear& linear = shape.kind.linears_of(stage)[which].linear;
  const LoraConfig& lora = shape.config.lora;
  return adapts(lora, linear) ? count_of(adapter_rows(lora, linear)) * lora.rank : 0;
}

}  // namespace tessera
