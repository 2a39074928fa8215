// The products of experts: in bf16 on Hopper those of kernels/gemm/sm90, else the plain ones.
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

}  // namespace

void CudaBackend::run_op(const ExpertsForward& a, const Launch& on) {
  const int64_t O = a.weight.shape[1], C = a.weight.shape[2];
  const gemm::ExpertProducts own{.of = rows_of(a.offsets, a.y.shape[0], a.x_rows, a.active()),
                                 .a = a.x.data,
                                 .b = a.weight.data,
                                 .bias = a.bias.data,
                                 .d = a.y.data,
                                 .n = O,
                                 .k = C,
                                 .transposed = true};
  if (traits_.own_gemms && a.x.dtype == DType::kBF16 && gemm::serves(own))
    return gemm::run(own, multiprocessors_, on.stream);
  with_real_type(a.x.dtype, [&]<class T>() {
    const Args<T, T, T> args{.a = operand<T>(a.x, a.x_rows, a.active()),
                             .b = operand<T>(a.weight),
                             .d = a.y.as<T>(),
                             .bias = a.bias.as<T>(),
                             .height = a.y.shape[0],
                             .width = O,
                             .terms = C,
                             .matrix = O * C,
                             .experts = experts_of(a.offsets)};
    launch_rows<T, false>(args, on.stream);
  });
}

void CudaBackend::run_op(const ExpertsBackward& a, const Launch& on) {
  const int64_t O = a.weight.shape[1], C = a.weight.shape[2], k = a.active(), R = a.dx.shape[0];
  const gemm::ExpertProducts own{.of = rows_of(a.offsets, R, a.dy_rows, k),
                                 .a = a.dy.data,
                                 .b = a.weight.data,
                                 .bias = nullptr,
                                 .d = a.dx.data,
                                 .n = C,
                                 .k = O,
                                 .transposed = false};
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
    const Args<T, T, T> args{.a = operand<T>(a.dy, a.dy_rows, k),
                             .b = operand<T>(a.weight),
                             .d = a.dx.as<T>(),
                             .height = a.dx.shape[0],
                             .width = C,
                             .terms = O,
                             .matrix = O * C,
                             .experts = experts_of(a.offsets)};
    launch_rows<T, true>(args, on.stream);
  });
}

}  // namespace tessera
