// The products of experts. On Hopper kernels/gemm/sm90 computes them in bf16 and FP8; the plain kernels
// compute all others.
#include <cuda_fp8.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts_gemm.cuh"
#include "kernels/gemm/sm90/experts.h"

namespace tessera {
namespace {

using namespace cuda::expert_gemm;

// x[r] *= the weight of the choice that row r is, in place
constexpr int kWeighThreads = 256;
template <class T>
struct WeighArgs {
  T* x;
  const int32_t* rows;
  const float* weights;
  int64_t packs;
  int packs_of_row;
};
template <class T>
__global__ __launch_bounds__(kWeighThreads) void weigh_kernel(WeighArgs<T> args) {
  const int64_t pack = static_cast<int64_t>(blockIdx.x) * kWeighThreads + threadIdx.x;
  if (pack >= args.packs) return;
  const float weight = args.weights[args.rows[pack / args.packs_of_row]];
  float x[kPackWidth<T>];
  load_floats(args.x + pack * kPackWidth<T>, x);
#pragma unroll
  for (float& value : x) value *= weight;
  store_floats(args.x + pack * kPackWidth<T>, x);
}
template <class T>
void launch_weigh(const WeighArgs<T>& args, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(cuda::divide_up(args.packs, kWeighThreads));
  weigh_kernel<<<blocks, kWeighThreads, 0, stream>>>(args);
  TESSERA_CUDA_LAUNCHED();
}

gemm::ExpertRows rows_of(const Tensor& offsets, int64_t rows, const Tensor& numbers, int64_t active) {
  return {.offsets = offsets.as<int32_t>(),
          .experts = offsets.shape[0] - 1,
          .rows = rows,
          .numbers = numbers.as<int32_t>(),
          .active = active};
}

// d[r] = a[r] b[e]^T, or with kTurned a[r] b[e], plus bias[e], in the plain form. With scales the values are
// FP8; multiplied as bf16, which has all of them.
template <class T, bool kTurned, class SA, class SB>
void launch_products(const Operand<SA>& a, const Operand<SB>& b, const Tensor& d, const Tensor& bias,
                     const Tensor& offsets, cudaStream_t stream, const Tensor& a_scale = {},
                     const Tensor& b_scale = {}) {
  launch_rows<T, kTurned>(Args<SA, SB, T, T>{.a = a,
                                             .b = b,
                                             .d = d.as<T>(),
                                             .bias = bias.as<T>(),
                                             .a_scale = a_scale.as<float>(),
                                             .b_scale = b_scale.as<float>(),
                                             .height = d.shape[0],
                                             .width = d.shape[1],
                                             .terms = a.columns,
                                             .matrix = d.shape[1] * a.columns,
                                             .experts = experts_of(offsets)},
                          stream);
}

// a and b become FP8, if there is any
void use_fp8(gemm::ExpertProducts& product, const Fp8Matrix& a, const Fp8Matrix& b, gemm::Operands operands) {
  if (!a) return;
  product.a = a.data.data, product.b = b.data.data;
  product.a_scale = a.scale.as<float>(), product.b_scale = b.scale.as<float>();
  product.operands = operands, product.transposed = true;
}

}  // namespace

void CudaBackend::run_op(const ExpertsForward& a, const Launch& on) {
  gemm::ExpertProducts own{.of = rows_of(a.offsets, a.y.shape[0], a.x_rows, a.active()),
                           .a = a.x.data,
                           .b = a.weight.data,
                           .bias = a.bias.data,
                           .d = a.y.data,
                           .n = a.weight.shape[1],
                           .k = a.weight.shape[2],
                           .transposed = true};
  use_fp8(own, a.fp8_x, a.fp8_weight, gemm::Operands::kE4m3);
  if (traits_.own_gemms && a.x.dtype == DType::kBF16 && gemm::serves(own))
    return gemm::run(own, multiprocessors_, on.stream);
  if (a.fp8_x)
    return launch_products<bf16, false>(operand<__nv_fp8_e4m3>(a.fp8_x.data, a.x_rows, a.active()),
                                        operand<__nv_fp8_e4m3>(a.fp8_weight.data), a.y, a.bias, a.offsets,
                                        on.stream, a.fp8_x.scale, a.fp8_weight.scale);
  with_real_type(a.x.dtype, [&]<class T>() {
    launch_products<T, false>(operand<T>(a.x, a.x_rows, a.active()), operand<T>(a.weight), a.y, a.bias,
                              a.offsets, on.stream);
  });
}

void CudaBackend::run_op(const ExpertsBackward& a, const Launch& on) {
  const int64_t O = a.weight.shape[1], C = a.weight.shape[2], k = a.active(), R = a.dx.shape[0];
  gemm::ExpertProducts own{.of = rows_of(a.offsets, R, a.dy_rows, k),
                           .a = a.dy.data,
                           .b = a.weight.data,
                           .bias = nullptr,
                           .d = a.dx.data,
                           .n = C,
                           .k = O,
                           .transposed = false};
  use_fp8(own, a.fp8_dy, a.fp8_weight, gemm::Operands::kE5m2);
  const bool weighs = static_cast<bool>(a.dy_rows);
  const gemm::ExpertWeightGradients own_weights{.of = rows_of(a.offsets, R, weighs ? a.dy_rows : a.x_rows, k),
                                                .gathered = weighs ? a.dy.data : a.x.data,
                                                .other = weighs ? a.x.data : a.dy.data,
                                                .d = a.dweight.data,
                                                .gathered_columns = weighs ? O : C,
                                                .other_columns = weighs ? C : O,
                                                .gathered_is_first = weighs,
                                                .accumulate = a.accumulate};
  const bool has_own = traits_.own_gemms && a.x.dtype == DType::kBF16,
             // The weights of choices multiply x in place, which dx overwrites then.
      owns_weights = has_own && (!weighs || a.dx.data == a.x.data) && gemm::serves(own_weights);
  with_real_type(a.x.dtype, [&]<class T>() {
    const auto experts = static_cast<int>(a.weight.shape[0]);
    if (a.dweight && owns_weights) {
      if (weighs)
        launch_weigh(WeighArgs<T>{.x = a.dx.as<T>(),
                                  .rows = a.dy_rows.as<int32_t>(),
                                  .weights = a.weights.as<float>(),
                                  .packs = R * C / kPackWidth<T>,
                                  .packs_of_row = static_cast<int>(C / kPackWidth<T>)},
                     on.stream);
      gemm::run(own_weights, multiprocessors_, on.stream);
    } else if (a.dweight) {
      const Args<T, T, T> args{.a = operand<T>(a.dy, a.dy_rows, k, a.weights),
                               .b = operand<T>(a.x, a.x_rows, k),
                               .d = a.dweight.as<T>(),
                               .add = a.accumulate ? a.dweight.as<T>() : nullptr,
                               .height = O,
                               .width = C,
                               .matrix = O * C,
                               .experts = experts_of(a.offsets)};
      launch_weights<T>(args, on.stream);
    }
    if (a.dbias)
      launch_biases(BiasArgs<T, T>{.dy = operand<T>(a.dy, a.dy_rows, k, a.weights),
                                   .d = a.dbias.as<T>(),
                                   .rows = a.dx.shape[0],
                                   .offsets = a.offsets.as<int32_t>(),
                                   .accumulate = a.accumulate},
                    experts, on.stream);
    if (has_own && gemm::serves(own)) return gemm::run(own, multiprocessors_, on.stream);
    if (a.fp8_dy)
      launch_products<bf16, false>(operand<__nv_fp8_e5m2>(a.fp8_dy.data, a.dy_rows, k),
                                   operand<__nv_fp8_e4m3>(a.fp8_weight.data), a.dx, {}, a.offsets, on.stream,
                                   a.fp8_dy.scale, a.fp8_weight.scale);
    else
      launch_products<T, true>(operand<T>(a.dy, a.dy_rows, k), operand<T>(a.weight), a.dx, {}, a.offsets,
                               on.stream);
  });
}

}  // namespace tessera
