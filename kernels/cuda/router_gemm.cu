// The products of a router, which has few weights and many tokens.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/router_gemm.cuh"
#include "kernels/cuda/thin_rows.cuh"
#include "kernels/cuda/thin_weights.cuh"

namespace tessera {
namespace {

using namespace cuda::expert_gemm;
namespace thin = cuda::thin_gemm;

bool are_thin(const RouterBackward& a) {
  return has_packs<float>(a.d_logits) && thin::has_packs(a.x) && thin::has_packs(a.weight);
}

template <class T>
void router_weights(const RouterBackward& a, const Launch& on) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], E = a.weight.shape[0];
  if (are_thin(a) && has_room_for_parts(E * C))
    return sum_in_parts(
        a.dweight.as<T>(), a.accumulate, E * C, N, a.kName, on, [&](float* partials, int64_t part) {
          thin::launch_weights<true>(thin::WeightsArgs<float, float>{.experts = {},
                                                                     .all_rows = N,
                                                                     .matrix = E * C,
                                                                     .x = {a.x.as<bf16>(), C},
                                                                     .u = a.d_logits.as<float>(),
                                                                     .rank = static_cast<int>(E),
                                                                     .d = partials,
                                                                     .accumulate = false,
                                                                     .part = part},
                                     on.stream);
        });
  const Args<float, T, T> args{.a = operand<float>(a.d_logits),
                               .b = operand<T>(a.x),
                               .d = a.dweight.as<T>(),
                               .add = a.accumulate ? a.dweight.as<T>() : nullptr,
                               .height = E,
                               .width = C,
                               .terms = N};
  launch_weights_in_parts<float>(args, a.kName, on);
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
    launch_rows<T, false>(args, on.stream);
  });
}

// The gradient of the logits is fp32. In bf16 the products take 16 bits of it: see thin_gemm.cuh.
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
    if (E <= thin::kMostTerms && are_thin(a))
      return thin::launch_wide<true>(thin::WideArgs<float>{.experts = {},
                                                           .all_rows = N,
                                                           .matrix = 0,
                                                           .u = a.d_logits.as<float>(),
                                                           .m = a.weight.as<bf16>(),
                                                           .add = a.add.as<bf16>(),
                                                           .y = a.dx.as<bf16>(),
                                                           .width = C,
                                                           .terms = static_cast<int>(E)},
                                     on.stream);
    const Args<float, T, T> args{.a = operand<float>(a.d_logits),
                                 .b = operand<T>(a.weight),
                                 .d = a.dx.as<T>(),
                                 .add = a.add.as<T>(),
                                 .height = N,
                                 .width = C,
                                 .terms = E};
    launch_rows<float, true>(args, on.stream);
  });
}

}  // namespace tessera
