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
    for (const StageRow* row : kind.stages) {
      if (!row->linear) continue;
      const StageRow *before = kind.before(row->stage), *after = kind.after(row->stage);
      places.push_back({.name = fmt::format("blocks.{}.{}", l, row->linear.name),
                        .number = l,
                        .stage = row->stage,
                        .weight = {},
                        .transposed = {},
                        .gemm_writes_x = before && before->linear && offers_of(*before, kind.spec).fp8_y,
                        .gemm_writes_dy = after && after->linear && offers_of(*after, kind.spec).fp8_dx});
    }
  }
  if (config && config.head)
    places.push_back({.name = "head", .number = model.layers, .stage = {}, .weight = {}, .transposed = {}});
  for (Fp8Place& place : places) {
    const auto& matrices = store.weight_home().forms().matrices();
    const auto stored = std::ranges::find(matrices, place.name, &StoredMatrix::layer);
    check(stored != matrices.end(), "the store has no FP8 values of {}", place.name);
    place.weight = stored->fp8(), place.transposed = stored->transposed;
  }
  return places;
}

}  // namespace tessera
