// The products of the adapters of experts and of routers. The kernels of thin_gemm.cuh compute what they
// serve, the plain ones the rest.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/router_gemm.cuh"
#include "kernels/cuda/thin_rows.cuh"
#include "kernels/cuda/thin_weights.cuh"

namespace tessera {
namespace {

using namespace cuda::expert_gemm;
namespace thin = cuda::thin_gemm;

// Rows of x or dy: row r is `numbers`[r] / `active` of the matrix; no numbers: r
struct Gathered {
  const Tensor& matrix;
  const Tensor& numbers = {};
  int64_t active = 1;

  template <class S>
  Operand<S> plain(const Tensor& weights = {}) const {
    return operand<S>(matrix, numbers, active, weights);
  }
  thin::Rows rows() const {
    return {matrix.as<bf16>(), matrix.shape[1], numbers.as<int32_t>(), static_cast<int>(active)};
  }
};
Gathered gathered(const Tensor& matrix, const Tensor& numbers, int64_t rows) {
  return {matrix, numbers, numbers ? rows / matrix.shape[0] : 1};
}

// The elements of an expert's matrix among `all`, which without offsets is a single one
int64_t matrix_of(const Tensor& all, const Tensor& offsets) {
  return all.numel() / (offsets ? all.shape[0] : 1);
}

// u = scale x m^T, m [r, columns of x], or with kTurned scale x m, m [columns of x, r]
template <class S, class T, bool kTurned>
void to_rank(const Gathered& x, const Tensor& m, float scale, const Tensor& u, const Tensor& offsets,
             cudaStream_t stream) {
  const int64_t R = u.shape[0], r = u.shape[1];
  if (r <= thin::kMostRank && thin::has_packs(x.matrix) && thin::has_packs(m) && thin::has_packs(u))
    return thin::launch_thin<kTurned>({.experts = experts_of(offsets),
                                       .all_rows = R,
                                       .matrix = matrix_of(m, offsets),
                                       .x = x.rows(),
                                       .m = m.as<bf16>(),
                                       .u = u.as<bf16>(),
                                       .scale = scale,
                                       .rank = static_cast<int>(r)},
                                      stream);
  const Args<S, T, T> args{.a = x.plain<S>(),
                           .b = operand<T>(m),
                           .d = u.as<T>(),
                           .scale = scale,
                           .height = R,
                           .width = r,
                           .terms = x.matrix.shape[1],
                           .matrix = matrix_of(m, offsets),
                           .experts = experts_of(offsets)};
  launch_rows<S, kTurned>(args, stream);
}

// y += u m^T, m [columns of y, r], or with kTurned y += u m, m [r, columns of y]
template <class T, class Y, bool kTurned>
void from_rank(const Tensor& u, const Tensor& m, const Tensor& y, const Tensor& offsets,
               cudaStream_t stream) {
  const int64_t R = u.shape[0], r = u.shape[1], width = y.shape[1];
  if (r <= thin::kMostRank && thin::has_packs(u) && thin::has_packs(m) && thin::has_packs(y))
    return thin::launch_wide<kTurned>(thin::WideArgs<bf16>{.experts = experts_of(offsets),
                                                           .all_rows = R,
                                                           .matrix = matrix_of(m, offsets),
                                                           .u = u.as<bf16>(),
                                                           .m = m.as<bf16>(),
                                                           .add = y.as<bf16>(),
                                                           .y = y.as<bf16>(),
                                                           .width = width,
                                                           .terms = static_cast<int>(r)},
                                      stream);
  const Args<T, T, Y> args{.a = operand<T>(u),
                           .b = operand<T>(m),
                           .d = y.as<Y>(),
                           .add = y.as<Y>(),
                           .height = R,
                           .width = width,
                           .terms = r,
                           .matrix = matrix_of(m, offsets),
                           .experts = experts_of(offsets)};
  launch_rows<T, kTurned>(args, stream);
}

// Row r has the weight weights[numbers[r]], that of a choice.
struct RowWeights {
  const Tensor &weights, &numbers;
};

// d (+)= x^T u, [columns of x, r], or with kTurned u^T x, [r, columns of x], over an expert's rows, each
// times its weight
template <class S, class T, bool kTurned>
void gradient(const Gathered& x, const Tensor& u, const RowWeights& by, const Tensor& d, bool accumulate,
              const Tensor& offsets, const Launch& on) {
  const int64_t R = u.shape[0], r = u.shape[1], columns = x.matrix.shape[1];
  if (thin::has_packs(x.matrix) && thin::has_packs(u) && (offsets || has_room_for_parts(d.numel()))) {
    const auto args_of = [&]<class D>(D* to, int64_t part) {
      return thin::WeightsArgs<bf16, D>{.experts = experts_of(offsets),
                                        .all_rows = R,
                                        .matrix = matrix_of(d, offsets),
                                        .x = x.rows(),
                                        .u = u.as<bf16>(),
                                        .rank = static_cast<int>(r),
                                        .weights = by.weights.as<float>(),
                                        .numbers = by.numbers.as<int32_t>(),
                                        .d = to,
                                        .accumulate = part == 0 && accumulate,
                                        .part = part};
    };
    if (offsets) return thin::launch_weights<kTurned>(args_of(d.as<bf16>(), 0), on.stream);
    return sum_in_parts(d.as<T>(), accumulate, d.numel(), R, ExpertsLoraBackward::kName, on,
                        [&](float* partials, int64_t part) {
                          thin::launch_weights<kTurned>(args_of(partials, part), on.stream);
                        });
  }
  const auto run = [&]<class SA, class SB>(const Operand<SA>& a, const Operand<SB>& b) {
    const Args<SA, SB, T> args{.a = a,
                               .b = b,
                               .d = d.as<T>(),
                               .add = accumulate ? d.as<T>() : nullptr,
                               .height = kTurned ? r : columns,
                               .width = kTurned ? columns : r,
                               .terms = R,
                               .matrix = matrix_of(d, offsets),
                               .experts = experts_of(offsets)};
    if (!offsets) return launch_weights_in_parts<SA>(args, ExpertsLoraBackward::kName, on);
    launch_weights<SA>(args, on.stream);
  };
  if constexpr (kTurned)
    run(operand<T>(u, by.numbers, 0, by.weights), x.plain<S>());
  else
    run(x.plain<S>(by.weights), operand<T>(u));
}

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
  with_lora_types(a.u, a.y, [&]<class T, class Y>() {
    to_rank<T, T, false>(gathered(a.x, a.x_rows, a.u.shape[0]), a.a, a.scale, a.u, a.offsets, on.stream);
    from_rank<T, Y, false>(a.u, a.b, a.y, a.offsets, on.stream);
  });
}

void CudaBackend::run_op(const ExpertsLoraBackward& a, const Launch& on) {
  const int64_t R = a.u.shape[0];
  const Gathered dy = gathered(a.dy, a.dy_rows, R), x = gathered(a.x, a.x_rows, R);
  const RowWeights by{a.weights, a.dy_rows};
  with_lora_types(a.u, a.dy, [&]<class T, class Y>() {
    gradient<Y, T, false>(dy, a.u, by, a.db, a.accumulate, a.offsets, on);
    to_rank<Y, T, true>(dy, a.b, a.scale, a.u, a.offsets, on.stream);
    gradient<T, T, true>(x, a.u, by, a.da, a.accumulate, a.offsets, on);
  });
}

void CudaBackend::run_op(const ExpertsLoraInput& a, const Launch& on) {
  with_real_type(a.u.dtype, [&]<class T>() { from_rank<T, T, true>(a.u, a.a, a.dx, a.offsets, on.stream); });
}

}  // namespace tessera
