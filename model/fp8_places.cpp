#include "model/fp8_places.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "model/stages.h"

namespace tessera {

std::vector<Fp8Place> fp8_places(const ParamStore& store, const Fp8Config& config) {
  const ModelConfig& model = store.model();
  std::vector<Fp8Place> places;
  for (int64_t l = 0; l < model.layers; ++l) {
    if (!config.has_block(l, model.layers)) continue;
    const auto at = static_cast<size_t>(l);
    const BlockKind& kind = store.layout().kinds.of(at);
    for (const LinearOfStage& of : kind.linears) {
      if (!can_be_in_fp8(of.linear)) continue;
      const StageRow *before = kind.before(of.stage), *after = kind.after(of.stage);
      const auto has_linear = [&](const StageRow* row) {
        return row && !kind.linears_of(row->stage).empty();
      };
      const int64_t choices = of.linear.of_experts() ? model.experts.active : 1;
      const bool sums = of.stage == Stage::kExpertsSum;  // else the layer has a row of x for each token
      places.push_back({.name = fmt::format("blocks.{}.{}", l, of.linear.name),
                        .number = l,
                        .linear = of.index,
                        .weight = {},
                        .transposed = {},
                        .x_values = of.linear.columns * (sums ? choices : 1),
                        .dy_values = of.linear.outputs() * (sums ? 1 : choices),
                        .in_chunks = row_of(of.stage).in_chunks,
                        .gemm_writes_x = has_linear(before) && offers_of(*before, kind.spec).fp8_y,
                        .gemm_writes_dy = has_linear(after) && offers_of(*after, kind.spec).fp8_dx});
    }
  }
  if (config && config.head)
    places.push_back({.name = "head",
                      .number = model.layers,
                      .linear = {},
                      .weight = {},
                      .transposed = {},
                      .x_values = model.channels,
                      .dy_values = model.padded_vocab()});
  for (Fp8Place& place : places) {
    const auto& matrices = store.weight_home().forms().matrices();
    const auto stored = std::ranges::find(matrices, place.name, &StoredMatrix::layer);
    check(stored != matrices.end(), "the store has no FP8 values of {}", place.name);
    place.weight = stored->fp8(), place.transposed = stored->transposed;
  }
  return places;
}

}  // namespace tessera
