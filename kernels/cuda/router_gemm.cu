// The products of a router, which has few weights and many tokens.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts_gemm.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

using namespace cuda::expert_gemm;

// d (+)= the sum of `parts` matrices, in their order
constexpr int kPartThreads = 256;
template <class D>
__global__ __launch_bounds__(kPartThreads) void add_parts_kernel(const float* partials, int parts,
                                                                 int64_t count, D* d, bool accumulate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPartThreads + threadIdx.x;
  if (i >= count) return;
  float sum = accumulate ? static_cast<float>(d[i]) : 0;
  for (int part = 0; part < parts; ++part) sum += partials[part * count + i];
  d[i] = static_cast<D>(sum);
}

// A router has few weights and many tokens: their sums in parts of at least so many tokens fill the GPU.
constexpr int64_t kMostParts = 16, kLeastOfPart = 256;
template <class T>
void router_weights(const RouterBackward& a, const Launch& on) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], E = a.weight.shape[0],
                bytes = E * C * static_cast<int64_t>(sizeof(float)),
                most = std::min(
                    {kMostParts, cuda::divide_up(N, kLeastOfPart), cuda::kGemmWorkspaceBytes / bytes}),
                part = cuda::divide_up(N, std::max<int64_t>(most, 1)), parts = cuda::divide_up(N, part);
  const auto args_of = [&]<class D>(D* d, D* add) {
    return Args<float, T, D>{.a = operand<float>(a.d_logits),
                             .b = operand<T>(a.x),
                             .d = d,
                             .add = add,
                             .height = E,
                             .width = C,
                             .terms = N,
                             .matrix = E * C,
                             .part = part};
  };
  T* dweight = a.dweight.as<T>();
  if (parts == 1)
    return launch_weights<float>(args_of(dweight, a.accumulate ? dweight : nullptr), {}, on.stream);
  auto* partials = reinterpret_cast<float*>(on.scratch(a.kName, parts * bytes));
  launch_weights<float>(args_of(partials, static_cast<float*>(nullptr)), {nullptr, parts}, on.stream);
  const auto blocks = static_cast<unsigned>(cuda::divide_up(E * C, kPartThreads));
  add_parts_kernel<<<blocks, kPartThreads, 0, on.stream>>>(partials, static_cast<int>(parts), E * C, dweight,
                                                           a.accumulate);
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace

void CudaBackend::run_op(const RouterForward& a, const Launch& on) {
  with_real_type(a.x.dtype, [&]<class T>() {
    const Args<T, T, float> args{.a = operand<T>(a.x),
                                 .b = operand<T>(a.weight),
                                 .d = a.logits.as<float>(),
                                 .bias = a.bias.as<T>(),
                                 .height = a.x.shape[0],
                                 .width = a.weight.shape[0],
                                 .terms = a.x.shape[1]};
    launch_rows<T, false>(args, {}, on.stream);
  });
}

// The gradient of the logits stays in fp32, and so do these products.
void CudaBackend::run_op(const RouterBackward& a, const Launch& on) {
  with_real_type(a.x.dtype, [&]<class T>() {
    const int64_t N = a.x.shape[0], C = a.x.shape[1], E = a.weight.shape[0];
    if (a.dweight) router_weights<T>(a, on);
    if (a.dbias)
      launch_biases(BiasArgs<float, T>{.dy = operand<float>(a.d_logits),
                                       .d = a.dbias.as<T>(),
                                       .rows = N,
                                       .offsets = nullptr,
                                       .accumulate = a.accumulate},
                    1, on.stream);
    const Args<float, T, T> args{.a = operand<float>(a.d_logits),
                                 .b = operand<T>(a.weight),
                                 .d = a.dx.as<T>(),
                                 .add = a.add.as<T>(),
                                 .height = N,
                                 .width = C,
                                 .terms = E};
    launch_rows<float, true>(args, {}, on.stream);
  });
}

}  // namespace tessera
