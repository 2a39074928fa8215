#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_values.h"
#include "kernels/cpu/gradients.h"

namespace tessera::cpu {

void run(const RmsNormForward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  const float* weight = a.weight.as<float>();
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float* x = a.x.as<float>() + n * C;
    const float* add = a.add ? a.add.as<float>() + n * C : nullptr;
    float* y = a.y.as<float>() + n * C;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < C; ++c) squares += x[c] * x[c];
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(C) + a.epsilon);
    for (int64_t c = 0; c < C; ++c) {
      const float normed = x[c] * rstd * (a.offset + weight[c]);
      y[c] = add ? add[c] + normed : normed;
    }
    a.rstd.as<float>()[n] = rstd;
  }
  write_fp8(a.y, DType::kE4M3, a.fp8_y);
}

// With h = x rstd and g = dy (offset + weight):
//   dx = rstd (g - h mean(g h)),  dweight += dy h
void run(const RmsNormBackward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1];
  const float *weight = a.weight.as<float>(), *rstds = a.rstd.as<float>();
  begin_gradients(a.accumulate, {a.dweight, a.dx_sum});
  // The parameter first: dx may be dy's or add's own memory, so nothing below reads what was written.
  constexpr int64_t kChunk = 64;  // channels a task owns
#pragma omp parallel for
  for (int64_t first = 0; first < C; first += kChunk) {
    const int64_t last = std::min(C, first + kChunk);
    for (int64_t n = 0; n < N; ++n) {
      const float *x = a.x.as<float>() + n * C, *dy = a.dy.as<float>() + n * C;
      for (int64_t c = first; c < last; ++c) a.dweight.as<float>()[c] += dy[c] * x[c] * rstds[n];
    }
  }
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float *x = a.x.as<float>() + n * C, *dy = a.dy.as<float>() + n * C;
    const float* add = a.add ? a.add.as<float>() + n * C : nullptr;
    float* dx = a.dx.as<float>() + n * C;
    const float rstd = rstds[n];
    float sum_gh = 0;
#pragma omp simd reduction(+ : sum_gh)
    for (int64_t c = 0; c < C; ++c) sum_gh += dy[c] * (a.offset + weight[c]) * x[c] * rstd;
    const float mean_gh = sum_gh / static_cast<float>(C);
    for (int64_t c = 0; c < C; ++c) {
      const float d = rstd * (dy[c] * (a.offset + weight[c]) - x[c] * rstd * mean_gh);
      dx[c] = add ? add[c] + d : d;
    }
  }
  if (a.dx_sum) add_rows(a.dx, a.dx_sum);
  write_fp8(a.dx, DType::kE5M2, a.fp8_dx);
}

}  // namespace tessera::cpu
