// SwiGLU and GeGLU: one pass over memory, a thread a pack of each of a row's halves. Threads past the last
// pack stay to the end: where FP8 values are written, the whole block finds the largest element.
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fp8_values.cuh"
#include "kernels/cuda/gates.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// Where the calling thread's pack lies in [N, F], and that of its gate in [N, 2 F]; up is F further. Indices
// of packs have 32 bits, because a division of 64 would take as long as the loads.
struct Place {
  int64_t y, gate;
};
__device__ __forceinline__ Place place_of(uint32_t pack, uint32_t packs_of_row, int width) {
  const uint32_t n = pack / packs_of_row;
  return {static_cast<int64_t>(pack) * width, (static_cast<int64_t>(n) * packs_of_row + pack) * width};
}

template <class Of, class T, class Fp8>
__global__ __launch_bounds__(kThreads) void gated_forward_kernel(const T* gate_up, T* y, uint32_t packs,
                                                                 uint32_t packs_of_row, Fp8 fp8_values) {
  constexpr int kWidth = kPackWidth<T>;
  ResultWriter<Fp8> result(fp8_values);
  const uint32_t pack = blockIdx.x * kThreads + threadIdx.x;
  if (pack < packs) {
    const Place at = place_of(pack, packs_of_row, kWidth);
    float gate[kWidth], up[kWidth];
    load_floats(gate_up + at.gate, gate);
    load_floats(gate_up + at.gate + packs_of_row * kWidth, up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) up[i] = Of::forward(gate[i], up[i]);
    result.store(y, at.y, up);
  }
  result.end();
}

// A thread reads all that it needs before it writes: d_gate_up may be gate_up.
template <class Of, class T, class Fp8>
__global__ __launch_bounds__(kThreads) void gated_backward_kernel(const T* dy, const T* gate_up, T* d_gate_up,
                                                                  uint32_t packs, uint32_t packs_of_row,
                                                                  Fp8 fp8_values) {
  constexpr int kWidth = kPackWidth<T>;
  ResultWriter<Fp8> result(fp8_values);
  const uint32_t pack = blockIdx.x * kThreads + threadIdx.x;
  if (pack < packs) {
    const Place at = place_of(pack, packs_of_row, kWidth);
    float d[kWidth], gate[kWidth], up[kWidth];
    load_floats(dy + at.y, d);
    load_floats(gate_up + at.gate, gate);
    load_floats(gate_up + at.gate + packs_of_row * kWidth, up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const cuda::GateGradients gradients = Of::backward(d[i], gate[i], up[i]);
      gate[i] = gradients.gate, up[i] = gradients.up;
    }
    result.store(d_gate_up, at.gate, gate);
    result.store(d_gate_up, at.gate + packs_of_row * kWidth, up);
  }
  result.end();
}

// launch(packs, packs of a row, blocks) for y [N, F]
template <class T, class F>
void with_packs(const char* op, const Tensor& y, F&& launch) {
  const int64_t packs = y.numel() / kPackWidth<T>;
  check(packs <= INT32_MAX, "{}: supports up to {} elements in {}, found {}", op,
        int64_t{INT32_MAX} * kPackWidth<T>, name_of(y.dtype), y.to_string());
  launch(static_cast<uint32_t>(packs), static_cast<uint32_t>(y.shape[1] / kPackWidth<T>),
         static_cast<uint32_t>(cuda::divide_up(packs, kThreads)));
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace

void CudaBackend::run_op(const GatedForward& a, const Launch& on) {
  check_packs(a.kName, {{"y", a.y}, {"gate_up", a.gate_up}});
  check_aligned(a.kName, {{"fp8_y", a.fp8_y.y.data}});
  with_real_type(a.y.dtype, [&]<class T>() {
    with_packs<T>(a.kName, a.y, [&](uint32_t packs, uint32_t packs_of_row, uint32_t blocks) {
      with_fp8<T, __NV_E4M3>(a.fp8_y, [&](auto fp8_values) {
        cuda::with_gate(a.gate, [&]<class Of>(Of) {
          gated_forward_kernel<Of><<<blocks, kThreads, 0, on.stream>>>(a.gate_up.as<T>(), a.y.as<T>(), packs,
                                                                       packs_of_row, fp8_values);
        });
      });
    });
  });
}

void CudaBackend::run_op(const GatedBackward& a, const Launch& on) {
  check_packs(a.kName, {{"dy", a.dy}, {"gate_up", a.gate_up}, {"d_gate_up", a.d_gate_up}});
  check_aligned(a.kName, {{"fp8_d_gate_up", a.fp8_d_gate_up.y.data}});
  with_real_type(a.dy.dtype, [&]<class T>() {
    with_packs<T>(a.kName, a.dy, [&](uint32_t packs, uint32_t packs_of_row, uint32_t blocks) {
      with_fp8<T, __NV_E5M2>(a.fp8_d_gate_up, [&](auto fp8_values) {
        cuda::with_gate(a.gate, [&]<class Of>(Of) {
          gated_backward_kernel<Of><<<blocks, kThreads, 0, on.stream>>>(
              a.dy.as<T>(), a.gate_up.as<T>(), a.d_gate_up.as<T>(), packs, packs_of_row, fp8_values);
        });
      });
    });
  });
}

}  // namespace tessera
