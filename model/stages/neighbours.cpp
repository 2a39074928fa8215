#include <algorithm>

#include "model/stages.h"

namespace tessera {
namespace {

// The linear layers of a block that are computed again before its backward. In FP8 they round their x into
// the place that all layers share.
bool recomputes_linear_layers(const BlockKind& kind, Keep keep) {
  return std::ranges::any_of(kind.linears,
                             [&](const LinearOfStage& linear) { return !kind.keeps(keep, linear.stage); });
}

}  // namespace

Handover between(const Block& block, const StageRow& reader, Keep kept) {
  const StageRow* writer = block.kind.before(reader.stage);
  const LinearOfStage* linear = block.kind.only_linear(reader.stage);
  if (!writer || !linear || !offers_of(*writer, block.spec).fp8_y) return {};
  if (block.kind.keeps(kept, writer->stage) || block.kind.keeps(kept, reader.stage))
    return {};  // one of them does not run
  // What follows in the first chunk would overwrite the x in FP8 of the others.
  if (block.pass.model.chunks_mlp() && reader.in_chunks && !writer->in_chunks) return {};
  return {.fp8 = &block.pass.model.fp8_of(block.layer, *linear)};
}

Handover between(const Pass& pass, const DyReader& reader) {
  const auto& [layer, gradients, row] = reader;
  const BlockKind& kind = pass.model.kind(layer);
  const LinearOfStage* linear = kind.only_linear(row.stage);
  if (!linear) return {};
  // The writer writes the gradient of the residual stream; where a dropout stands between, that is not dy.
  if (row.branch && branch_dropout(pass, row.branch->dropout, layer)) return {};
  const StageRow* writer = kind.after(row.stage);
  // None: it is the first norm of the block above, or the final norm. The reader's block may run again
  // between the two, and would then overwrite dy in FP8. In chunks every block's MLP does.
  const Model& model = pass.model;
  const bool overwritten = !writer && recomputes_linear_layers(kind, model.keep.at(layer)) &&
                           (runs_again(model, layer) || model.chunks_mlp());
  const Offers offers = offers_of(writer ? *writer : row_of(Stage::kNorm1), kind.spec);
  Handover match;
  if (offers.dx_sum && !linear->linear.of_experts()) match.bias = linear->weights(gradients).bias;
  if (offers.fp8_dx && !overwritten) match.fp8 = &model.fp8_of(layer, *linear);
  return match;
}

Handover to_block_below(const Pass& pass, size_t layer, const BlockParams* gradients) {
  if (!gradients) return {};
  const StageRow& last = *pass.model.kind(layer - 1).stages.back();
  return between(pass, {.layer = layer - 1, .gradients = *gradients, .row = last});
}

}  // namespace tessera
