#include "model/store/kept_state.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {

int64_t KeptState::rows_before(const Has& has, size_t bucket, size_t index) const {
  int64_t rows = 0;
  for (const ParamPlace& place : setting_.layout.places)
    if (place.bucket == bucket && place.index < index && place.trained && has(place.info))
      rows += place.info.shape.numel() / place.info.shape[-1];
  return rows;
}

void KeptState::keep_masters() {
  Kept masters{.name = kMaster, .buckets = {}};
  if (setting_.dtype != DType::kF32)
    masters.buckets = allocate("lower bits of masters", {.name = kMaster, .dtype = DType::kU16}, is_any);
  else
    for (size_t b = 0; b < setting_.layout.buckets.size(); ++b)
      masters.buckets.push_back(weights_.updated(b));
  kept_.push_back(std::move(masters));
}

void KeptState::keep(const StateTensor& state, const Has& has) {
  std::string words = state.name;  // "first moment block 3"
  std::ranges::replace(words, '_', ' ');
  kept_.push_back(
      {.name = state.name, .buckets = allocate(words, state, has), .of_rows = state.of_rows, .has = has});
}

// Up to the end of the part, or as many elements as a part has
std::vector<Tensor> KeptState::allocate(const std::string& words, const StateTensor& state,
                                        const Has& has) const {
  const ParamLayout& layout = setting_.layout;
  Arena& where = state.of_rows ? setting_.arena : where_;  // ranks send rows to each other
  std::vector<Tensor> buckets;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const int64_t trained = layout.buckets[b].trained;
    int64_t first = trained;
    for (const ParamPlace& place : layout.places)
      if (place.bucket == b && place.trained && has(place.info)) first = std::min(first, place.first);
    const int64_t count = state.of_rows ? rows_before(has, b, layout.places.size())
                                        : std::min(setting_.part_elements(b), trained - first);
    buckets.push_back(count == 0 ? Tensor{}
                                 : where.alloc(MemoryTag::kOptimizer,
                                               fmt::format("{} {}", words, layout.buckets[b].name),
                                               state.dtype, {count}));
  }
  return buckets;
}

std::vector<std::string> KeptState::names() const {
  std::vector<std::string> names;
  for (const Kept& one : kept_) names.push_back(one.name);
  return names;
}

const KeptState::Kept& KeptState::find(const std::string& name) const {
  const auto found = std::ranges::find(kept_, name, &Kept::name);
  check(found != kept_.end(), "the optimizer keeps no \"{}\"", name);
  return *found;
}

const Tensor& KeptState::of(const std::string& name, size_t bucket) const {
  return find(name).buckets[bucket];
}

int64_t KeptState::first_row(const std::string& name, const ParamPlace& matrix) const {
  return rows_before(find(name).has, matrix.bucket, matrix.index);
}

void KeptState::clear() {
  for (const Kept& one : kept_)
    for (const Tensor& bucket : one.buckets)
      if (bucket) setting_.stream.run(FillZero{bucket});
}

ParamSlice KeptState::slice(const std::string& name, const ParamPlace& place, ElementRange range) const {
  const Tensor& mine = of(name, place.bucket);
  return mine ? slice_of(mine, first_of(mine, place.bucket), place, range) : ParamSlice{};
}

std::vector<KeptState::WeightSlice> KeptState::weight_slices(const ParamPlace& place,
                                                             ElementRange range) const {
  const auto [first, weights] = weights_.slice(place, range);
  if (!weights) return {};
  const bool has_low_bits = setting_.dtype != DType::kF32 && !kept_.empty() && place.trained;
  const ParamSlice low = has_low_bits ? slice(kMaster, place, range) : ParamSlice{};
  const int64_t count = weights.shape[0], low_begins = low.own ? low.first - first : count,
                low_ends = low.own ? low_begins + low.own.shape[0] : count;
  std::vector<WeightSlice> slices;
  const auto add = [&](int64_t from, int64_t to, const Tensor& bits) {
    if (from < to)
      slices.push_back({.first = first + from, .own = weights.rows(from, to - from), .low = bits});
  };
  add(0, low_begins, {}), add(low_begins, low_ends, low.own), add(low_ends, count, {});
  return slices;
}

bool KeptState::is_of_rows(const std::string& name) const {
  return name != kWeight && name != kMaster && find(name).of_rows;
}

bool KeptState::has(const std::string& name, const ParamPlace& place) const {
  if (!place.trained) return false;
  return is_of_rows(name) ? find(name).has(place.info)
                          : static_cast<bool>(slice(name, place, all_of(place)).own);
}

void KeptState::write(const std::string& name, const ParamPlace& place, const Tensor& values) {
  if (!place.trained) return;
  std::vector<float> of_rows;
  if (is_of_rows(name)) {
    const Tensor rows = rows_of(name, place);
    const int64_t columns = values.numel() / std::max<int64_t>(rows.numel(), 1);
    for (int64_t row = 0; row < rows.numel(); ++row) of_rows.push_back(values.as<float>()[row * columns]);
    setting_.stream.run(Copy{{.data = of_rows.data(), .shape = rows.shape}, rows});
  } else {
    const ParamSlice own = slice(name, place, all_of(place));
    if (!own.own) return;
    setting_.stream.run(Copy{values.view({values.numel()}).rows(own.first, own.own.shape[0]), own.own});
  }
  setting_.stream.synchronize();
}

void KeptState::read_rows(const std::string& name, const ParamPlace& place, const Tensor& to) const {
  const Tensor rows = rows_of(name, place);
  std::vector<float> values(static_cast<size_t>(rows.numel()));
  setting_.stream.run(Copy{rows, {.data = values.data(), .shape = rows.shape}});
  setting_.stream.synchronize();
  const int64_t columns = to.numel() / std::max<int64_t>(rows.numel(), 1);
  for (int64_t row = 0; row < rows.numel(); ++row)
    std::fill_n(to.as<float>() + row * columns, columns, values[static_cast<size_t>(row)]);
}

}  // namespace tessera
