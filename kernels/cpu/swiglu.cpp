#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_values.h"
#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {

void run(const SwigluForward& a, const Launch& /*on*/) {
  const int64_t N = a.y.shape[0], F = a.y.shape[1];
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float *gate = a.gate_up.as<float>() + n * 2 * F, *up = gate + F;
    float* y = a.y.as<float>() + n * F;
    for (int64_t f = 0; f < F; ++f) y[f] = gate[f] / (1.0f + exp(-gate[f])) * up[f];
  }
  write_fp8(a.y, DType::kE4M3, a.fp8_y);
}

// With s = sigmoid(gate): dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s
void run(const SwigluBackward& a, const Launch& /*on*/) {
  const int64_t N = a.dy.shape[0], F = a.dy.shape[1];
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float* dy = a.dy.as<float>() + n * F;
    const float *gate = a.gate_up.as<float>() + n * 2 * F, *up = gate + F;
    float *dgate = a.d_gate_up.as<float>() + n * 2 * F, *dup = dgate + F;
#pragma omp simd  // d_gate_up may be gate_up itself: an element is read before it is written
    for (int64_t f = 0; f < F; ++f) {
      const float g = gate[f], u = up[f], s = 1.0f / (1.0f + exp(-g));
      dgate[f] = dy[f] * u * s * (1.0f + g * (1.0f - s));
      dup[f] = dy[f] * g * s;
    }
  }
  write_fp8(a.d_gate_up, DType::kE5M2, a.fp8_d_gate_up);
}

}  // namespace tessera::cpu
