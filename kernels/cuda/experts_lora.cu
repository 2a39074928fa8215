// The products of the adapters of experts and of their router.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/experts_gemm.cuh"

namespace tessera {
namespace {

using namespace cuda::expert_gemm;

// The arguments of a product of an adapter with the matrices [height, width] of each expert
template <class SA, class SB, class D>
Args<SA, SB, D> of_experts(Args<SA, SB, D> args, const Tensor& offsets, int64_t matrix) {
  if (!offsets) return args;
  args.matrix = matrix, args.offsets = offsets.as<int32_t>();
  args.experts = static_cast<int>(offsets.shape[0] - 1);
  return args;
}
Offsets of_adapter(const Tensor& offsets) { return offsets ? of(offsets) : Offsets{}; }

// Y: of what the frozen layer writes, fp32 of a router
template <class Run>
void with_lora_types(const Tensor& u, const Tensor& y, const Run& run) {
  with_real_type(u.dtype, [&]<class T>() {
    if (y.dtype == DType::kF32)
      run.template operator()<T, float>();
    else
      run.template operator()<T, T>();
  });
}

}  // namespace

void CudaBackend::run_op(const ExpertsLoraForward& a, const Launch& on) {
  const int64_t R = a.u.shape[0], r = a.u.shape[1], C = a.x.shape[1], O = a.y.shape[1];
  with_lora_types(a.u, a.y, [&]<class T, class Y>() {
    const Args<T, T, T> down{.a = operand<T>(a.x, a.x_rows, R / a.x.shape[0]),
                             .b = operand<T>(a.a),
                             .d = a.u.as<T>(),
                             .scale = a.scale,
                             .height = R,
                             .width = r,
                             .terms = C};
    launch_rows<T, false>(of_experts(down, a.offsets, r * C), of_adapter(a.offsets), on.stream);
    const Args<T, T, Y> up{.a = operand<T>(a.u),
                           .b = operand<T>(a.b),
                           .d = a.y.as<Y>(),
                           .add = a.y.as<Y>(),
                           .height = R,
                           .width = O,
                           .terms = r};
    launch_rows<T, false>(of_experts(up, a.offsets, O * r), of_adapter(a.offsets), on.stream);
  });
}

void CudaBackend::run_op(const ExpertsLoraBackward& a, const Launch& on) {
  const int64_t R = a.u.shape[0], r = a.u.shape[1], C = a.x.shape[1], O = a.dy.shape[1];
  const Offsets offsets = of_adapter(a.offsets);
  with_lora_types(a.u, a.dy, [&]<class T, class Y>() {
    const Args<Y, T, T> db{.a = operand<Y>(a.dy, a.dy_rows, R / a.dy.shape[0], a.weights),
                           .b = operand<T>(a.u),
                           .d = a.db.as<T>(),
                           .add = a.accumulate ? a.db.as<T>() : nullptr,
                           .height = O,
                           .width = r,
                           .terms = R};
    launch_weights<Y>(of_experts(db, a.offsets, O * r), offsets, on.stream);
    const Args<Y, T, T> du{.a = operand<Y>(a.dy, a.dy_rows, R / a.dy.shape[0]),
                           .b = operand<T>(a.b),
                           .d = a.u.as<T>(),
                           .scale = a.scale,
                           .height = R,
                           .width = r,
                           .terms = O};
    launch_rows<Y, true>(of_experts(du, a.offsets, O * r), offsets, on.stream);
    const Args<T, T, T> da{.a = operand<T>(a.u, a.dy_rows, 0, a.weights),
                           .b = operand<T>(a.x, a.x_rows, R / a.x.shape[0]),
                           .d = a.da.as<T>(),
                           .add = a.accumulate ? a.da.as<T>() : nullptr,
                           .height = r,
                           .width = C,
                           .terms = R};
    launch_weights<T>(of_experts(da, a.offsets, r * C), offsets, on.stream);
  });
}

void CudaBackend::run_op(const ExpertsLoraInput& a, const Launch& on) {
  const int64_t R = a.u.shape[0], r = a.u.shape[1], C = a.dx.shape[1];
  with_real_type(a.u.dtype, [&]<class T>() {
    const Args<T, T, T> args{.a = operand<T>(a.u),
                             .b = operand<T>(a.a),
                             .d = a.dx.as<T>(),
                             .add = a.dx.as<T>(),
                             .height = R,
                             .width = C,
                             .terms = r};
    launch_rows<T, true>(of_experts(args, a.offsets, r * C), of_adapter(a.offsets), on.stream);
  });
}

}  // namespace tessera
