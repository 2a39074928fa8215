#include "model/lora.h"

#include "kernels/base/check.h"
#include "kernels/base/word_set.h"

namespace tessera {

// The adapter's part first: of the two sums it is the small one, so that less of it is lost in a rounding.
void linear_forward(const Stream& stream, const LinearLayer& layer, LinearForward gemm) {
  if (layer.adapted()) {
    const Tensor sum = gemm.pre_activation ? gemm.pre_activation : gemm.y;
    stream.run(LoraForward{.x = gemm.x,
                           .a = layer.weights.lora_a,
                           .b = layer.weights.lora_b,
                           .parts = layer.parts,
                           .scale = layer.scale,
                           .u = layer.u,
                           .y = sum,
                           .add = gemm.add});
    gemm.add = sum;
  }
  quantise_operands(stream, layer.fp8, gemm, layer.saturated_x);
  stream.run(gemm);
}

void linear_backward(const Stream& stream, const LinearLayer& layer, LinearGradients gradients) {
  LinearBackward& gemm = gradients.gemm;
  if (layer.adapted()) {
    check(!gemm.dweight, "a weight with an adapter is frozen, and was given a gradient");
    stream.run(LoraBackward{.dy = gemm.dy,
                            .x = gemm.x,
                            .a = layer.weights.lora_a,
                            .b = layer.weights.lora_b,
                            .parts = layer.parts,
                            .scale = layer.scale,
                            .u = layer.u,
                            .dx = gemm.dx,
                            .da = gradients.adapter.lora_a,
                            .db = gradients.adapter.lora_b,
                            .add = gemm.add,
                            .accumulate = gemm.accumulate});
    gemm.x = gemm.add = gemm.dx;  // x may be overwritten, and without dweight is not read
  }
  quantise_operands(stream, layer.fp8, gemm, layer.saturated_dy);
  stream.run(gemm);
}

void add_adapter(const Tensor& weight, const Tensor& a, const Tensor& b, const LayerParts& parts,
                 float scale) {
  const int64_t O = weight.shape[-2], C = weight.shape[-1], r = b.shape[-1], rows = weight.numel() / C;
  const int64_t of_expert = a.numel() * O / rows;  // elements of its A
#pragma omp parallel for
  for (int64_t row = 0; row < rows; ++row) {
    int64_t layer = 0;
    for (int64_t end = parts[0]; row % O >= end; end += parts[static_cast<size_t>(layer)]) ++layer;
    float* to = weight.as<float>() + row * C;
    for (int64_t k = 0; k < r; ++k) {
      const float factor = scale * b.as<float>()[row * r + k];
      const float* from = a.as<float>() + row / O * of_expert + (layer * r + k) * C;
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) to[c] += factor * from[c];
    }
  }
}

std::string text_of(AdaptedParts parts) {
  return words_with_plus<Adapted>([&](Adapted part) { return parts.names(part); });
}

std::string text_of(const LoraConfig& lora) {
  if (!lora) return "none";
  return fmt::format("rank {}, alpha {}, {}", lora.rank, lora.alpha, text_of(lora.parts));
}

}  // namespace tessera
