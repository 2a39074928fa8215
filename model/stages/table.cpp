#include <algorithm>
#include <array>
#include <vector>

#include "model/stages/rows.h"

namespace tessera {
namespace {

constexpr std::array<const StageRow*, kStages.size()> kTable = {
    &kNorm1Row,   &kQkvRow,     &kAttentionRow,         &kOutRow,        &kNorm1AfterRow,
    &kNorm2Row,   &kExpandRow,  &kActivationRow,        &kContractRow,   &kRouterRow,
    &kChoicesRow, &kExpertsRow, &kExpertsActivationRow, &kExpertsSumRow, &kNorm2AfterRow};

}  // namespace

bool covers(Keep keep, Keep other) {
  const auto drops = [](Keep one, const StageRow& row) {
    return one == Keep::nothing() || one.recomputes_any(row.dropped_by);
  };
  return std::ranges::none_of(kTable,
                              [&](const StageRow* row) { return drops(other, *row) && !drops(keep, *row); });
}

Offers offers_of(const StageRow& row, const BlockSpec& spec) {
  return row.offers ? row.offers(spec) : Offers{};
}

const StageRow& row_of(Stage stage) { return *kTable[static_cast<size_t>(stage)]; }

BlockKind::BlockKind(const ModelConfig& config, const BlockSpec& own) : spec(own) {
  for (const StageRow* row : kTable) {
    if (row->exists && !row->exists(spec)) continue;
    stages.push_back(row);
    if (row->linears)
      for (LinearOfStage& linear : row->linears(config, spec)) {
        linear.stage = row->stage, linear.index = linears.size();
        linears.push_back(linear);
      }
    if (row->vectors)
      for (VectorOfStage& vector : row->vectors(config, spec)) {
        vector.stage = row->stage;
        vectors.push_back(std::move(vector));
      }
  }
}

const StageRow* BlockKind::before(Stage stage) const {
  const auto at = std::ranges::find(stages, stage, &StageRow::stage);
  return at == stages.begin() || at == stages.end() ? nullptr : *(at - 1);
}

const StageRow* BlockKind::after(Stage stage) const {
  const auto at = std::ranges::find(stages, stage, &StageRow::stage);
  return at == stages.end() || at + 1 == stages.end() ? nullptr : *(at + 1);
}

std::span<const LinearOfStage> BlockKind::linears_of(Stage stage) const {
  return std::ranges::equal_range(linears, stage, {}, &LinearOfStage::stage);
}

const LinearOfStage* BlockKind::only_linear(Stage stage) const {
  const std::span<const LinearOfStage> all = linears_of(stage);
  return all.size() == 1 ? &all[0] : nullptr;
}

bool BlockKind::keeps(Keep keep, Stage stage) const {
  if (keep == Keep::nothing()) return false;
  return !keep.recomputes_any(row_of(stage).dropped_by) || stages.back()->stage == stage;
}

BlockKinds::BlockKinds(const ModelConfig& config) {
  for (size_t layer = 0; layer < static_cast<size_t>(config.layers); ++layer) {
    const BlockSpec spec = block_spec(config, layer);
    const auto known = std::ranges::find(distinct_, spec, &BlockKind::spec);
    of_block_.push_back(static_cast<size_t>(known - distinct_.begin()));
    if (known == distinct_.end()) distinct_.emplace_back(config, spec);
  }
}

void visit_block_saved(BlockSaved& block, const SavedShape& shape,
                       const std::function<void(Stage, const SavedInfo&, Tensor&)>& visit) {
  for (const StageRow* row : shape.kind.stages)
    row->saved(block, shape, [&](const SavedInfo& info, Tensor& tensor) { visit(row->stage, info, tensor); });
}

void visit_norm_saved(NormSaved& norm, const NormSavedInfo& info, const TakeSaved& take) {
  const int64_t N = info.shape[0];
  take({info.names[0], info.dtype, info.shape}, norm.y);
  if (info.kind == NormKind::kLayerNorm) take({info.names[1], DType::kF32, {N}}, norm.mean);
  take({info.names[2], DType::kF32, {N}}, norm.rstd);
}

}  // namespace tessera
