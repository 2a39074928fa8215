#include <algorithm>

#include "model/stages.h"

namespace tessera {
namespace {

// The linear layers of a block that are computed again before its backward. In FP8 they round their x into
// the place that all layers share.
bool recomputes_linear_layers(const BlockSpec& spec, Keep keep) {
  return std::ranges::any_of(
      stages_of(spec), [&](const StageRow* row) { return row->linear && !keep.keeps(row->stage, spec); });
}

}  // namespace

Handover between(const Block& block, const StageRow& reader, Keep kept) {
  const StageRow* writer = stage_before(block.spec, reader.stage);
  if (!writer || !reader.linear || !offers_of(*writer, block.spec).fp8_y) return {};
  if (kept.keeps(writer->stage, block.spec) || kept.keeps(reader.stage, block.spec))
    return {};  // one of them does not run
  // What follows in the first chunk would overwrite the x in FP8 of the others.
  if (block.pass.model.chunks_mlp() && is_of_mlp(reader.stage) && !is_of_mlp(writer->stage)) return {};
  return {.fp8 = &block.pass.model.fp8_of(block.layer, reader.stage)};
}

Handover between(const Pass& pass, const DyReader& reader) {
  const auto& [layer, gradients, row] = reader;
  if (!row.linear) return {};
  // The writer writes the gradient of the residual stream; where a dropout stands between, that is not dy.
  if (row.branch && pass.dropout.at(row.branch->dropout, layer)) return {};
  const BlockSpec spec = block_spec(pass.model.config, layer);
  const StageRow* writer = stage_after(spec, row.stage);
  // None: it is the first norm of the block above, or the final norm. The reader's block may run again
  // between the two, and would then overwrite dy in FP8. In chunks every block's MLP does.
  const Model& model = pass.model;
  const bool overwritten = !writer && recomputes_linear_layers(spec, model.keep.at(layer)) &&
                           (runs_again(model, layer) || model.chunks_mlp());
  const Offers offers = offers_of(writer ? *writer : row_of(Stage::kNorm1), spec);
  Handover match;
  if (offers.dx_sum) match.bias = row.linear.weights(gradients).bias;
  if (offers.fp8_dx && !overwritten) match.fp8 = &model.fp8_of(layer, row.stage);
  return match;
}

Handover to_block_below(const Pass& pass, size_t layer, const BlockParams* gradients) {
  if (!gradients) return {};
  const StageRow& last = *stages_of(block_spec(pass.model.config, layer - 1)).back();
  return between(pass, {.layer = layer - 1, .gradients = *gradients, .row = last});
}

}  // namespace tessera
