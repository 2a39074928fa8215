#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_values.h"
#include "kernels/cpu/gates.h"

namespace tessera::cpu {

void run(const GatedForward& a, const Launch& /*on*/) {
  const int64_t N = a.y.shape[0], F = a.y.shape[1];
  with_gate(a.gate, [&]<class Of>(Of) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      const float *gate = a.gate_up.as<float>() + n * 2 * F, *up = gate + F;
      float* y = a.y.as<float>() + n * F;
      for (int64_t f = 0; f < F; ++f) y[f] = Of::forward(gate[f], up[f]);
    }
  });
  write_fp8(a.y, DType::kE4M3, a.fp8_y);
}

void run(const GatedBackward& a, const Launch& /*on*/) {
  const int64_t N = a.dy.shape[0], F = a.dy.shape[1];
  with_gate(a.gate, [&]<class Of>(Of) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      const float* dy = a.dy.as<float>() + n * F;
      const float *gate = a.gate_up.as<float>() + n * 2 * F, *up = gate + F;
      float *dgate = a.d_gate_up.as<float>() + n * 2 * F, *dup = dgate + F;
#pragma omp simd  // d_gate_up may be gate_up itself: an element is read before it is written
      for (int64_t f = 0; f < F; ++f) {
        const GateGradients d = Of::backward(dy[f], gate[f], up[f]);
        dgate[f] = d.gate, dup[f] = d.up;
      }
    }
  });
  write_fp8(a.d_gate_up, DType::kE5M2, a.fp8_d_gate_up);
}

}  // namespace tessera::cpu
