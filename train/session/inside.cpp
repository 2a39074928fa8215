#include "train/session/inside.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tessera {
namespace {

constexpr int64_t kSums = 3;  // of weights, gradients, updates

InsideFigures::Part& part_named(InsideFigures& figures, const std::string& name, size_t layers) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const auto found = std::ranges::find(figures.parts, name, &InsideFigures::Part::name);
  if (found != figures.parts.end()) return *found;
  figures.parts.push_back({.name = name,
                           .layers = std::vector<InsideFigures::Norms>(
                               layers, {.weight = kNone, .update = kNone, .gradient = kNone})});
  return figures.parts.back();
}

// sqrt(norm^2 + squares); NaN is a norm of nothing yet
void add_squares_to(double& norm, double squares) {
  norm = std::sqrt((std::isnan(norm) ? 0 : norm * norm) + squares);
}

Probe allocate_probe(Arena& arena, const ModelConfig& model, int64_t layers_in_fp8) {
  const auto take = [&](const char* name, const Shape& shape, DType dtype = DType::kF32) {
    return arena.alloc(MemoryTag::kData, name, dtype, shape);
  };
  const int64_t experts = model.experts.count;
  return {.attention_entropies = take("entropies of attention", {model.layers, model.heads}),
          .unit_maxima = take("largest values of units", {model.mlp_width}),
          .dead_units = take("dead units", {model.layers}),
          .expert_loads = experts > 0 ? take("loads of experts", {model.layers, experts}) : Tensor{},
          .router_entropies = experts > 0 ? take("entropies of routers", {model.layers}) : Tensor{},
          .saturated = layers_in_fp8 > 0
                           ? take("FP8 values that saturate", {layers_in_fp8, 2, 2}, DType::kI32)
                           : Tensor{}};
}

std::string within_block(std::string name) {  // without "blocks.3."
  return name.erase(0, name.find('.', name.find('.') + 1) + 1);
}

}  // namespace

std::string part_of(const ParamInfo& info) {
  if (info.block >= 0 && info.part == ParamPart::kNorms) return "norms";
  std::string name = info.block >= 0 ? within_block(info.name) : info.name;
  for (const std::string_view end : {".weight", ".bias"})
    if (name.ends_with(end)) name.erase(name.size() - end.size());
  return name;
}

Inside::Inside(const Stream& stream, Arena& arena, Arena& host, ParamStore& store, int64_t rows,
               std::vector<Fp8Place> in_fp8)
    : stream_(stream),
      store_(store),
      rows_(rows),
      trained_(std::ranges::count_if(store.layout().places, &ParamPlace::trained)),
      in_fp8_(std::move(in_fp8)),
      probe_(allocate_probe(arena, store.model(), std::ssize(in_fp8_))),
      sums_(stream, host,
            arena.alloc(MemoryTag::kOptimizer, "sums of squares", DType::kF32,
                        {store.part().count * trained_ * kSums})),
      entropies_(stream, host, probe_.attention_entropies),
      dead_units_(stream, host, probe_.dead_units) {
  if (probe_.expert_loads) {
    expert_loads_.emplace(stream, host, probe_.expert_loads);
    router_entropies_.emplace(stream, host, probe_.router_entropies);
  }
  if (probe_.saturated) saturated_.emplace(stream, host, probe_.saturated);
}

Tensor Inside::norms() const { return store_.part().of(sums_.device()).view({trained_, kSums}); }

void Inside::gather() {
  const Tensor all = sums_.device();
  if (store_.part().count > 1) {
    store_.axis().all_gather({.part = store_.part().of(all), .whole = all});
    store_.axis().wait();
  }
  for (FetchedTensor* tensor : {&sums_, &entropies_, &dead_units_}) tensor->start();
  for (std::optional<FetchedTensor>* tensor : {&expert_loads_, &router_entropies_, &saturated_})
    if (*tensor) (*tensor)->start();
}

InsideFigures Inside::sampled() {
  InsideFigures figures;
  const std::span<const float> entropies = entropies_.values(), dead = dead_units_.values();
  const auto heads = static_cast<size_t>(store_.model().heads);
  const auto units = static_cast<double>(store_.model().mlp_width);
  for (size_t layer = 0; layer < dead.size(); ++layer) {
    const std::span<const float> own = entropies.subspan(layer * heads, heads);
    figures.attention_entropy.push_back(std::accumulate(own.begin(), own.end(), 0.0) /
                                        static_cast<double>(heads));
    const bool has_experts = store_.model().experts.in_block(static_cast<int64_t>(layer));
    figures.dead_units.push_back(has_experts ? std::numeric_limits<double>::quiet_NaN()
                                             : dead[layer] / units);
  }
  return figures;
}

void Inside::add_experts(InsideFigures& to) {
  if (!expert_loads_) return;
  const ModelConfig& model = store_.model();
  const std::span<const float> loads = expert_loads_->values(), entropies = router_entropies_->values();
  const auto experts = static_cast<size_t>(model.experts.count);
  for (size_t layer = 0; layer < entropies.size(); ++layer) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const bool has_experts = model.experts.in_block(static_cast<int64_t>(layer));
    const std::span<const float> of_layer = loads.subspan(layer * experts, has_experts ? experts : 0);
    const auto dead = static_cast<double>(std::ranges::count(of_layer, 0.0f));
    to.expert_load.emplace_back(of_layer.begin(), of_layer.end());
    to.router_entropy.push_back(has_experts ? entropies[layer] : kNone);
    to.dead_experts.push_back(has_experts ? dead / static_cast<double>(experts) : kNone);
  }
}

void Inside::add_saturated(InsideFigures& to) {
  if (!saturated_) return;
  const auto layers = static_cast<size_t>(store_.model().layers);
  const std::span<const uint64_t> counts = saturated_->values<uint64_t>();
  for (size_t i = 0; i < in_fp8_.size(); ++i) {
    const Fp8Place& place = in_fp8_[i];
    const bool outside = place.number == store_.model().layers;
    const std::string name = outside ? place.name : within_block(place.name);
    auto found = std::ranges::find(to.saturated, name, &InsideFigures::Saturated::name);
    if (found == to.saturated.end()) {
      const std::vector<double> none(outside ? 1 : layers, std::numeric_limits<double>::quiet_NaN());
      found = to.saturated.insert(found, {.name = name, .x = none, .dy = none});
    }
    const size_t layer = outside ? 0 : static_cast<size_t>(place.number);
    const auto share = [&](uint64_t count, int64_t of_token) {
      return static_cast<double>(count) / static_cast<double>(rows_ * of_token);
    };
    found->x[layer] = share(counts[2 * i], place.x_values);
    found->dy[layer] = share(counts[2 * i + 1], place.dy_values);
  }
}

InsideFigures Inside::figures() {
  const std::span<const float> sums = sums_.values();
  const auto layers = static_cast<size_t>(store_.model().layers),
             parts = static_cast<size_t>(store_.part().count), each = static_cast<size_t>(trained_ * kSums);
  InsideFigures figures = sampled();
  add_experts(figures);
  add_saturated(figures);
  size_t at = 0;
  for (const ParamPlace& place : store_.layout().places) {
    if (!place.trained) continue;
    double squares[kSums] = {};
    for (size_t part = 0; part < parts; ++part)
      for (size_t i = 0; i < kSums; ++i) squares[i] += sums[part * each + at + i];
    at += kSums;
    const bool outside = place.info.block < 0;
    InsideFigures::Norms& norms = part_named(figures, part_of(place.info), outside ? 1 : layers)
                                      .layers[outside ? 0 : static_cast<size_t>(place.info.block)];
    add_squares_to(norms.weight, squares[0]);
    add_squares_to(norms.gradient, squares[1]);
    add_squares_to(norms.update, squares[2]);
  }
  return figures;
}

}  // namespace tessera
