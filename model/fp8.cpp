#include "model/fp8.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/fp8_scale.h"

namespace tessera {
namespace {

// Scale number i; `scales` has any shape
Tensor scale_of(const Tensor& scales, int64_t i) {
  return scales.view({scales.numel()}).rows(i * kFp8ScaleStride, 1);
}

}  // namespace

std::string fp8_text(const ModelConfig& model, const Fp8Config& config) {
  const int64_t first = config.edges ? 0 : 1, last = model.layers - 1 - first;
  const std::string blocks =
      first > last ? "" : fmt::format("blocks {} to {} of {}", first, last, model.layers);
  bool routes = false;
  for (int64_t l = first; l <= last; ++l) routes = routes || model.experts.in_block(l);
  return fmt::format("{}{}{}{}; {} scales{}", blocks, !blocks.empty() && config.head ? ", and " : "",
                     config.head ? "the logits" : "", routes ? "; not routers" : "", name_of(config.scaling),
                     config.dw ? "; dW too" : "");
}

Fp8::Fp8(Arena& arena, const ModelConfig& model, const Fp8Run& run) : config_(run.config), rank_(run.rank) {
  fp8_.blocks.resize(static_cast<size_t>(model.layers));
  for (const Fp8Place& place : run.places)
    if (place.number < model.layers) {
      std::vector<Fp8Linear>& block = fp8_.blocks[static_cast<size_t>(place.number)];
      block.resize(std::max(block.size(), place.linear + 1));
    }
  for (const Fp8Place& place : run.places) layers_.push_back({place, &linear_of(fp8_, place)});
  if (layers_.empty()) return;
  const auto S = std::ssize(layers_);
  const auto take = [&](const std::string& name, DType dtype, const Shape& shape) {
    return arena.alloc(MemoryTag::kWeights, name, dtype, shape);
  };
  scales_ = take("FP8 scales", DType::kF32, {2, S, kFp8ScaleStride});
  before_ = take("FP8 scales of the step before", DType::kF32, {2, S, kFp8ScaleStride});
  amaxes_ = take("FP8 largest elements", DType::kF32, {run.ranks, 2, S});
  const DType stored = fp8_storage(DType::kE4M3, arena.device());
  // A GEMM reads its operand in FP8 while it writes that of the next layer: these have a place of their own.
  int64_t largest = 0, largest_hidden = 0, largest_x = 0, largest_dy = 0;
  const auto has_dw = [&](const Layer& layer) {
    const bool of_experts = layer.weight.data.shape.rank() == 3;
    return run.config.dw && layer.number < model.layers && !of_experts;
  };
  for (const Layer& layer : layers_) {
    const int64_t rows = layer.number == model.layers ? run.logit_rows
                         : layer.in_chunks            ? run.mlp_rows
                                                      : run.rows;
    if (has_dw(layer)) {
      largest_x = std::max(largest_x, rows * layer.x_values);
      largest_dy = std::max(largest_dy, rows * layer.dy_values);
    }
    int64_t& for_x = layer.gemm_writes_x ? largest_hidden : largest;
    for_x = std::max(for_x, rows * layer.x_values);
    int64_t& for_dy = layer.gemm_writes_dy ? largest_hidden : largest;
    for_dy = std::max(for_dy, rows * layer.dy_values);
  }
  const auto place = [&](const char* name, int64_t bytes) {
    return bytes > 0 ? arena.alloc(MemoryTag::kActivations, name, stored, {bytes}) : Tensor{};
  };
  const Tensor operand = place("FP8 operand", largest), hidden = place("FP8 hidden layer", largest_hidden),
               x_transposed = place("FP8 x, transposed", largest_x),
               dy_transposed = place("FP8 dy, transposed", largest_dy), own = own_amaxes();
  for (int64_t i = 0; i < S; ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    *layer.fp8 = {.weight = layer.weight,
                  .transposed = {layer.transposed, layer.weight.scale},
                  .x_scale = scale_of(scales_, i),
                  .dy_scale = scale_of(scales_, S + i),
                  .x_amax = own.rows(i, 1),
                  .dy_amax = own.rows(S + i, 1),
                  .x_place = layer.gemm_writes_x ? hidden : operand,
                  .dy_place = layer.gemm_writes_dy ? hidden : operand,
                  .x_transposed_place = has_dw(layer) ? x_transposed : Tensor{},
                  .dy_transposed_place = has_dw(layer) ? dy_transposed : Tensor{},
                  .number = i};
  }
}

Fp8Linear& Fp8::linear_of(Fp8Layers& of, const Fp8Place& place) const {
  const auto block = static_cast<size_t>(place.number);
  return block == of.blocks.size() ? of.head : of.blocks[block][place.linear];
}

const Fp8Layers* Fp8::layers_of(const std::vector<Fp8Place>& others) {
  check(std::ranges::equal(others, layers_, {}, &Fp8Place::name, &Fp8Place::name),
        "the layers in FP8 of two models differ");
  others_ = fp8_;
  for (size_t i = 0; i < others.size(); ++i) {
    Fp8Linear& other = linear_of(others_, layers_[i]);
    other.weight = others[i].weight, other.transposed = {};
    layers_[i].other = &other;
  }
  return *this ? &others_ : nullptr;
}

Tensor Fp8::own_amaxes() const {
  const int64_t of_rank = amaxes_.numel() / amaxes_.shape[0];
  return amaxes_.view({amaxes_.numel()}).rows(rank_ * of_rank, of_rank);
}

void Fp8::begin_step(const Stream& stream) {
  if (layers_.empty()) return;
  stream.run(FillZero{amaxes_});
  if (known_) stream.run(Copy{scales_, before_});
  known_before_ = known_;
  for (const Layer& layer : layers_)
    for (Fp8Linear* fp8 : {layer.fp8, layer.other})
      if (fp8) fp8->current_scales = !known_ || config_.scaling == Fp8Scaling::kCurrent;
}

void Fp8::take_back_step(const Stream& stream) {
  if (layers_.empty()) return;
  if (known_before_) stream.run(Copy{before_, scales_});
  known_ = known_before_;
}

void Fp8::end_step(const Stream& stream) {
  if (layers_.empty()) return;
  stream.run(UpdateScales{.amax = amaxes_, .scale = scales_});
  known_ = true;
}

void Fp8::read_again(bool reads_again) {
  for (const Layer& layer : layers_)
    for (Fp8Linear* fp8 : {layer.fp8, layer.other})
      if (fp8) fp8->reads_again = reads_again;
}

void Fp8::forget() { known_ = false; }

Fp8Scales Fp8::scales(const Stream& stream) const {
  if (layers_.empty() || !known_ || config_.scaling == Fp8Scaling::kCurrent) return {};
  const size_t S = layers_.size();
  std::vector<float> host(static_cast<size_t>(scales_.numel()));
  stream.run(Copy{scales_, {host.data(), DType::kF32, scales_.shape, Device::kCpu}});
  stream.synchronize();
  Fp8Scales found;
  for (size_t i = 0; i < S; ++i)
    found[layers_[i].name] = {.x = std::ilogb(host[i * kFp8ScaleStride]),
                              .dy = std::ilogb(host[(S + i) * kFp8ScaleStride])};
  return found;
}

void Fp8::set_scales(const Stream& stream, const Fp8Scales& scales) {
  known_ = !layers_.empty() &&
           std::ranges::all_of(layers_, [&](const Layer& layer) { return scales.contains(layer.name); });
  if (!known_) return;
  const size_t S = layers_.size();
  std::vector<float> host(static_cast<size_t>(scales_.numel()));
  for (size_t i = 0; i < S; ++i) {
    const Fp8Exponents& exponents = scales.at(layers_[i].name);
    host[i * kFp8ScaleStride] = std::ldexp(1.0f, exponents.x);
    host[(S + i) * kFp8ScaleStride] = std::ldexp(1.0f, exponents.dy);
  }
  stream.run(Copy{{host.data(), DType::kF32, scales_.shape, Device::kCpu}, scales_});
  stream.synchronize();
}

}  // namespace tessera
