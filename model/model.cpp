#include "model/model.h"

#include <cmath>

#include "kernels/base/bf16.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

const Fp8Linear kNotInFp8{};

}  // namespace

const Fp8Linear& Model::fp8_of(size_t layer, const LinearOfStage& linear) const {
  return fp8 && linear.index < fp8->blocks[layer].size() ? fp8->blocks[layer][linear.index] : kNotInFp8;
}

const Fp8Linear& Model::fp8_of_head() const { return fp8 ? fp8->head : kNotInFp8; }

float attention_scale(const ModelConfig& config, size_t layer, float plans) {
  const float own = config.query_scalar > 0 && config.query_scalar != config.head_dim
                        ? 1 / std::sqrt(static_cast<float>(config.query_scalar))
                        : plans,
              scale = config.scale_attention ? own : 1;
  return config.scale_attention_by_layer ? scale / static_cast<float>(layer + 1) : scale;
}

float embedding_scale(const ModelConfig& config, DType dtype) {
  const auto own = static_cast<float>(config.embedding_scale);
  if (!config.scale_embeddings) return own;
  const float scale = std::sqrt(static_cast<float>(config.channels));
  return own * (dtype == DType::kBF16 ? float_from_bf16(bf16_from_float(scale)) : scale);
}

MaskTables Batch::mask_tables(int64_t window) const {
  MaskTables tables{.documents = documents, .seen_by = seen_by, .query_tokens = places};
  if (!seen_by || window == Windows::kFull) return tables;
  const auto found = std::ranges::find(within, window, &Within::window);
  check(found != within.end(), "a batch of dealt queries has no tables for a window of {}", window);
  tables.documents = found->documents, tables.seen_by = found->seen_by;
  return tables;
}

Tensor by_sequence(const Model& model, const Tensor& rows) {
  return rows.view({model.attention.batch(), model.attention.tokens(), rows.shape[1]});
}

Dropout branch_dropout(const Pass& pass, DropoutKind kind, size_t layer) {
  Dropout dropout = pass.dropout.at(kind, layer);
  dropout.factor = static_cast<float>(pass.model.config.residual_scale);
  return dropout;
}

void drop(const Pass& pass, ApplyDropout op) {
  if (!op.dropout) return;
  op.x = by_sequence(pass.model, op.x), op.y = by_sequence(pass.model, op.y);
  if (op.add) op.add = by_sequence(pass.model, op.add);
  op.rows = pass.batch.places;
  pass.stream.run(op);
}

}  // namespace tessera
