#include "model/fp8_places.h"

#include <algorithm>

#include "model/stages.h"

namespace tessera {

std::vector<Fp8Place> fp8_places(const ParamStore& store, const Fp8Config& config) {
  const ModelConfig& model = store.model();
  const Params& weights = store.weight_views();
  std::vector<Fp8Place> places;
  for (int64_t l = 0; l < model.layers; ++l) {
    if (!config.has_block(l, model.layers)) continue;
    const auto at = static_cast<size_t>(l);
    const BlockSpec spec = block_spec(model, at);
    for (const StageRow* row : stages_of(spec)) {
      if (!row->linear) continue;
      const StageRow *before = stage_before(spec, row->stage), *after = stage_after(spec, row->stage);
      places.push_back({.name = fmt::format("blocks.{}.{}", l, row->linear.name),
                        .number = l,
                        .stage = row->stage,
                        .weight = row->linear.weights(weights.blocks[at]).weight,
                        .stored = {},
                        .stored_transposed = {},
                        .gemm_writes_x = before && before->linear && offers_of(*before, spec).fp8_y,
                        .gemm_writes_dy = after && after->linear && offers_of(*after, spec).fp8_dx});
    }
  }
  if (config && config.head)
    places.push_back({.name = "head",
                      .number = model.layers,
                      .stage = {},
                      .weight = weights.classifier(),
                      .stored = {},
                      .stored_transposed = {}});
  for (Fp8Place& place : places) {
    const auto stored = std::ranges::find(store.fp8_weights(), place.name, &Fp8Weight::layer);
    if (stored == store.fp8_weights().end()) continue;
    place.stored = stored->values, place.stored_transposed = stored->transposed;
  }
  return places;
}

}  // namespace tessera
