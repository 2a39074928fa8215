#include "kernels/gemm/linear_gemms.h"

#include <type_traits>

#include "kernels/base/present.h"
#include "kernels/expert_ops.h"

namespace tessera {
namespace {

// The address of a column of a tensor of rows, where a layer's outputs begin
void* column(const Tensor& tensor, int64_t first) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data);  // a plan's tensors have none
  return reinterpret_cast<void*>(begin + static_cast<uintptr_t>(first) * size_of(tensor.dtype));
}

// The matrix in bf16 or fp32, or its FP8 values and scale if it has them
GemmMatrix operand(const Tensor& matrix, const Fp8Matrix& fp8, int64_t ld, bool transposed = false) {
  if (!fp8) return {.data = matrix.data, .ld = ld, .transposed = transposed};
  return {.data = fp8.data.data,
          .ld = ld,
          .transposed = transposed,
          .dtype = fp8.data.dtype,
          .scale = fp8.scale.as<float>()};
}

}  // namespace

LinearForwardGemms gemms_of(const LinearForward& a) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  Gemm gemm{.dtype = a.x.dtype,
            .m = N,
            .n = O,
            .k = C,
            .a = operand(a.x, a.fp8_x, C),
            .b = operand(a.weight, a.fp8_weight, C, /*transposed=*/true),
            .d = {.data = a.y.data, .ld = O}};
  if (a.add) gemm.c = a.add.data, gemm.beta = 1;
  const Tensor& sum = a.pre_activation ? a.pre_activation : a.y;
  Gemm activated = gemm, fused = gemm, plain = gemm;
  activated.bias = fused.bias = a.bias.data;
  fused.d.data = plain.d.data = sum.data;
  if (a.bias) fused.epilogue = GemmEpilogue::kBias;
  if (!a.pre_activation || a.add) return {.fused = fused, .plain = plain, .fuses_activation = false};
  activated.aux = a.pre_activation.data;
  activated.epilogue = a.bias ? GemmEpilogue::kActivateBias : GemmEpilogue::kActivate;
  activated.activation = a.activation;
  const bool fuses = a.activation == Activation::kGelu && !a.fp8_x;
  return {.fused = fuses ? activated : fused, .plain = plain, .fuses_activation = fuses, .own = activated};
}

LinearBackwardGemms gemms_of(const LinearBackward& a) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  const DType dtype = a.x.dtype;
  LinearBackwardGemms gemms{.dweight = {},
                            .fused_dx = {},
                            .dx = {.dtype = dtype,
                                   .m = N,
                                   .n = C,
                                   .k = O,
                                   .a = operand(a.dy, a.fp8_dy, O),
                                   // cuBLASLt needs k contiguous in both FP8 operands.
                                   .b = a.fp8_weight ? operand(a.weight, a.fp8_weight, O, /*transposed=*/true)
                                                     : operand(a.weight, {}, C),
                                   .d = {.data = a.dx.data, .ld = C}}};
  if (a.add) gemms.dx.c = a.add.data, gemms.dx.beta = 1;
  const bool fp8_dweight = static_cast<bool>(a.fp8_x_transposed);
  if (a.dweight)
    gemms.dweight = Gemm{
        .dtype = dtype,
        .m = O,
        .n = C,
        .k = N,
        .a = fp8_dweight ? operand(a.dy, a.fp8_dy_transposed, N) : operand(a.dy, {}, O, /*transposed=*/true),
        .b = fp8_dweight ? operand(a.x, a.fp8_x_transposed, N, /*transposed=*/true) : operand(a.x, {}, C),
        .d = {.data = a.dweight.data, .ld = C},
        .beta = a.accumulate ? 1.0f : 0.0f,
        .may_add = true};
  if (a.dbias && !fp8_dweight) {
    Gemm& dweight = present(gemms.dweight);
    dweight.sums = a.dbias.data, dweight.summed = a.dbias.numel();
  }
  // cuBLASLt knows tanh to some 11 bits here: enough before a rounding to bf16, not for fp32.
  if (a.pre_activation && !a.add && dtype == DType::kBF16) {
    gemms.own_dx = gemms.dx;
    gemms.own_dx->epilogue = GemmEpilogue::kActivationBackward;
    gemms.own_dx->activation = a.activation;
    gemms.own_dx->aux = a.pre_activation.data;
    if (a.activation == Activation::kGelu && !a.fp8_dy) gemms.fused_dx = gemms.own_dx;
  }
  return gemms;
}

// u = scale x A^T; then, for each layer of the matrix, its columns of y = add + its columns of u B^T
void each_gemm(const LoraForward& a, const EachGemm& run) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.b.shape[0], r = a.b.shape[1], width = a.a.shape[0];
  run({.dtype = a.x.dtype,
       .m = N,
       .n = width,
       .k = C,
       .a = {.data = a.x.data, .ld = C},
       .b = {.data = a.a.data, .ld = C, .transposed = true},
       .d = {.data = a.u.data, .ld = width},
       .alpha = a.scale});
  int64_t first = 0;
  for (int64_t p = 0; p < count_of(a.parts); first += a.parts[static_cast<size_t>(p++)])
    run({.dtype = a.x.dtype,
         .m = N,
         .n = a.parts[static_cast<size_t>(p)],
         .k = r,
         .a = {.data = column(a.u, p * r), .ld = width},
         .b = {.data = column(a.b, first * r), .ld = r, .transposed = true},
         .d = {.data = column(a.y, first), .ld = O},
         .c = a.add ? column(a.add, first) : nullptr,
         .beta = a.add ? 1.0f : 0.0f});
}

// For each layer of the matrix: dB += dy^T u, and du = dy B over u. Then dA += scale du^T x, and
// dx = scale du A: last, as it may overwrite x.
void each_gemm(const LoraBackward& a, const EachGemm& run) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.b.shape[0], r = a.b.shape[1], width = a.a.shape[0];
  const DType dtype = a.x.dtype;
  int64_t first = 0;
  for (int64_t p = 0; p < count_of(a.parts); first += a.parts[static_cast<size_t>(p++)]) {
    const int64_t rows = a.parts[static_cast<size_t>(p)];
    run({.dtype = dtype,
         .m = rows,
         .n = r,
         .k = N,
         .a = {.data = column(a.dy, first), .ld = O, .transposed = true},
         .b = {.data = column(a.u, p * r), .ld = width},
         .d = {.data = column(a.db, first * r), .ld = r},
         .beta = a.accumulate ? 1.0f : 0.0f,
         .may_add = true});
    run({.dtype = dtype,
         .m = N,
         .n = r,
         .k = rows,
         .a = {.data = column(a.dy, first), .ld = O},
         .b = {.data = column(a.b, first * r), .ld = r},
         .d = {.data = column(a.u, p * r), .ld = width}});
  }
  run({.dtype = dtype,
       .m = width,
       .n = C,
       .k = N,
       .a = {.data = a.u.data, .ld = width, .transposed = true},
       .b = {.data = a.x.data, .ld = C},
       .d = {.data = a.da.data, .ld = C},
       .alpha = a.scale,
       .beta = a.accumulate ? 1.0f : 0.0f,
       .may_add = true});
  run({.dtype = dtype,
       .m = N,
       .n = C,
       .k = width,
       .a = {.data = a.u.data, .ld = width},
       .b = {.data = a.a.data, .ld = C},
       .d = {.data = a.dx.data, .ld = C},
       .c = a.add ? a.add.data : nullptr,
       .alpha = a.scale,
       .beta = a.add ? 1.0f : 0.0f});
}

void each_gemm(const AnyOp& op, const EachGemm& see) {
  std::visit(
      [&](const auto* a) {
        using Op = std::remove_cvref_t<decltype(*a)>;
        if constexpr (std::is_same_v<Op, LinearForward>) {
          see(gemms_of(*a).fused);
        } else if constexpr (std::is_same_v<Op, LinearBackward>) {
          if (a->x.shape[0] == 1) return;  // as long as reading the weight, whatever the algorithm
          const LinearBackwardGemms gemms = gemms_of(*a);
          if (gemms.dweight) see(*gemms.dweight);
          see(gemms.fused_dx.value_or(gemms.dx));
        } else if constexpr (std::is_same_v<Op, LoraForward> || std::is_same_v<Op, LoraBackward>) {
          each_gemm(*a, see);
        }
      },
      op);
}

}  // namespace tessera
