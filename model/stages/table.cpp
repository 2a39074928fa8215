#include <algorithm>
#include <array>
#include <vector>

#include "model/stages/rows.h"

namespace tessera {
namespace {

constexpr std::array<const StageRow*, kStages.size()> kTable = {
    &kNorm1Row, &kQkvRow,    &kAttentionRow,  &kOutRow,      &kNorm1AfterRow,
    &kNorm2Row, &kExpandRow, &kActivationRow, &kContractRow, &kNorm2AfterRow};

}  // namespace

bool Keep::keeps(Stage stage, const BlockSpec& spec) const {
  if (*this == nothing()) return false;
  return (parts_ & row_of(stage).dropped_by.parts_) == 0 || stages_of(spec).back()->stage == stage;
}

bool Keep::covers(Keep other) const {
  const BlockSpec all_stages{.norm_place = NormPlace::kBoth, .mlp = Mlp::kSwiglu};
  return std::ranges::none_of(
      kStages, [&](Stage stage) { return keeps(stage, all_stages) && !other.keeps(stage, all_stages); });
}

Offers offers_of(const StageRow& row, const BlockSpec& spec) {
  return row.offers ? row.offers(spec) : Offers{};
}

const StageRow& row_of(Stage stage) { return *kTable[static_cast<size_t>(stage)]; }

std::span<const StageRow* const> stages_of(const BlockSpec& spec) {
  const auto those_of = [](NormPlace norm_place, Mlp mlp) {
    std::vector<const StageRow*> rows;
    for (const StageRow* row : kTable)
      if (!row->exists || row->exists({.norm_place = norm_place, .mlp = mlp})) rows.push_back(row);
    return rows;
  };
  static const std::vector<const StageRow*> lists[] = {
      those_of(NormPlace::kBefore, Mlp::kGelu), those_of(NormPlace::kBefore, Mlp::kSwiglu),
      those_of(NormPlace::kBoth, Mlp::kGelu),   those_of(NormPlace::kBoth, Mlp::kSwiglu),
      those_of(NormPlace::kAfter, Mlp::kGelu),  those_of(NormPlace::kAfter, Mlp::kSwiglu)};
  return lists[2 * static_cast<size_t>(spec.norm_place) + spec.gated()];
}

const StageRow* stage_before(const BlockSpec& spec, Stage stage) {
  const StageRow* before = nullptr;
  for (const StageRow* row : stages_of(spec)) {
    if (row->stage == stage) return before;
    before = row;
  }
  return nullptr;
}

const StageRow* stage_after(const BlockSpec& spec, Stage stage) {
  const std::span<const StageRow* const> rows = stages_of(spec);
  for (size_t i = 0; i + 1 < rows.size(); ++i)
    if (rows[i]->stage == stage) return rows[i + 1];
  return nullptr;
}

void visit_block_saved(BlockSaved& block, const SavedShape& shape,
                       const std::function<void(Stage, const SavedInfo&, Tensor&)>& visit) {
  for (const StageRow* row : stages_of(shape.spec))
    row->saved(block, shape, [&](const SavedInfo& info, Tensor& tensor) { visit(row->stage, info, tensor); });
}

void visit_norm_saved(NormSaved& norm, const NormSavedInfo& info, const TakeSaved& take) {
  const int64_t N = info.shape[0];
  take({info.names[0], info.dtype, info.shape}, norm.y);
  if (info.kind == NormKind::kLayerNorm) take({info.names[1], DType::kF32, {N}}, norm.mean);
  take({info.names[2], DType::kF32, {N}}, norm.rstd);
}

}  // namespace tessera
