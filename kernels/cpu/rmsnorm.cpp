#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_values.h"
#include "kernels/cpu/gradients.h"

namespace tessera::cpu {
namespace {

// Rows that may have a distance: those of some heads have
struct RowsAt {
  float* first;
  int64_t stride;
  float* operator[](int64_t n) const { return first + n * stride; }
};
RowsAt rows_at(const Tensor& rows) { return {rows.as<float>(), rows.shape[1]}; }
RowsAt rows_at(const Heads& heads) {
  const View<float> view = heads_of<float>(heads);
  return {view.data, view.row};
}
int64_t tokens_of(const Heads& heads) { return heads.tensor.shape[0] * heads.tensor.shape[1]; }

struct NormRows {
  int64_t N, C;
  RowsAt x, y;
  const float *weight, *add;  // `add` may be null
  float* rstd;
  float epsilon, offset;
};
void norm_rows(const NormRows& a) {
#pragma omp parallel for
  for (int64_t n = 0; n < a.N; ++n) {
    const float* x = a.x[n];
    const float* add = a.add ? a.add + n * a.C : nullptr;
    float* y = a.y[n];
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < a.C; ++c) squares += x[c] * x[c];
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.C) + a.epsilon);
    for (int64_t c = 0; c < a.C; ++c) {
      const float normed = x[c] * rstd * (a.offset + a.weight[c]);
      y[c] = add ? add[c] + normed : normed;
    }
    a.rstd[n] = rstd;
  }
}

// With h = x rstd and g = dy (offset + weight):
//   dx = rstd (g - h mean(g h)),  dweight += dy h
struct NormRowsBackward {
  int64_t N, C;
  RowsAt dy, x, dx;
  const float *weight, *add, *rstd;  // `add` may be null
  float* dweight;
  float offset;
};
void norm_rows_backward(const NormRowsBackward& a) {
  // The parameter first: dx may be dy's or add's own memory, so nothing below reads what was written.
  constexpr int64_t kChunk = 64;  // channels a task owns
#pragma omp parallel for
  for (int64_t first = 0; first < a.C; first += kChunk) {
    const int64_t last = std::min(a.C, first + kChunk);
    for (int64_t n = 0; n < a.N; ++n) {
      const float *x = a.x[n], *dy = a.dy[n];
      for (int64_t c = first; c < last; ++c) a.dweight[c] += dy[c] * x[c] * a.rstd[n];
    }
  }
#pragma omp parallel for
  for (int64_t n = 0; n < a.N; ++n) {
    const float *x = a.x[n], *dy = a.dy[n];
    const float* add = a.add ? a.add + n * a.C : nullptr;
    float* dx = a.dx[n];
    const float rstd = a.rstd[n];
    float sum_gh = 0;
#pragma omp simd reduction(+ : sum_gh)
    for (int64_t c = 0; c < a.C; ++c) sum_gh += dy[c] * (a.offset + a.weight[c]) * x[c] * rstd;
    const float mean_gh = sum_gh / static_cast<float>(a.C);
    for (int64_t c = 0; c < a.C; ++c) {
      const float d = rstd * (dy[c] * (a.offset + a.weight[c]) - x[c] * rstd * mean_gh);
      dx[c] = add ? add[c] + d : d;
    }
  }
}

}  // namespace

void run(const RmsNormForward& a, const Launch& /*on*/) {
  norm_rows({.N = a.x.shape[0],
             .C = a.x.shape[1],
             .x = rows_at(a.x),
             .y = rows_at(a.y),
             .weight = a.weight.as<float>(),
             .add = a.add.as<float>(),
             .rstd = a.rstd.as<float>(),
             .epsilon = a.epsilon,
             .offset = a.offset});
  write_fp8(a.y, DType::kE4M3, a.fp8_y);
}

void run(const RmsNormBackward& a, const Launch& /*on*/) {
  begin_gradients(a.accumulate, {a.dweight, a.dx_sum});
  norm_rows_backward({.N = a.x.shape[0],
                      .C = a.x.shape[1],
                      .dy = rows_at(a.dy),
                      .x = rows_at(a.x),
                      .dx = rows_at(a.dx),
                      .weight = a.weight.as<float>(),
                      .add = a.add.as<float>(),
                      .rstd = a.rstd.as<float>(),
                      .dweight = a.dweight.as<float>(),
                      .offset = a.offset});
  if (a.dx_sum) add_rows(a.dx, a.dx_sum);
  write_fp8(a.dx, DType::kE5M2, a.fp8_dx);
}

void run(const HeadsNormForward& a, const Launch& /*on*/) {
  norm_rows({.N = tokens_of(a.x),
             .C = a.weight.shape[0],
             .x = rows_at(a.x),
             .y = rows_at(a.y),
             .weight = a.weight.as<float>(),
             .add = nullptr,
             .rstd = a.rstd.as<float>(),
             .epsilon = a.epsilon,
             .offset = a.offset});
}

void run(const HeadsNormBackward& a, const Launch& /*on*/) {
  begin_gradients(a.accumulate, {a.dweight});
  norm_rows_backward({.N = tokens_of(a.x),
                      .C = a.weight.shape[0],
                      .dy = rows_at(a.dy),
                      .x = rows_at(a.x),
                      .dx = rows_at(a.dx),
                      .weight = a.weight.as<float>(),
                      .add = nullptr,
                      .rstd = a.rstd.as<float>(),
                      .dweight = a.dweight.as<float>(),
                      .offset = a.offset});
}

}  // namespace tessera::cpu
