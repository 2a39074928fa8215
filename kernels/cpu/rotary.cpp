#include <algorithm>
#include <cmath>

#include "kernels/base/documents.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gradients.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kChunk = 16;  // pairs and channels that a task owns where weights' gradients are summed

// The row of `angles` of token n
const float* angles_at(const Tensor& angles, const Tensor& positions, const Tensor& starts, int64_t n,
                       int64_t T) {
  return angles.as<float>() +
         given_position(positions.as<int32_t>(), starts.as<int32_t>(), n, T) * 2 * angles.shape[1];
}

// One head: a row of `angles` is (cos, sin) of each pair; channels behind the pairs stay. y may be x itself.
void rotate(const float* x, const float* angles, float* y, int64_t pairs, int64_t D) {
#pragma omp simd
  for (int64_t i = 0; i < pairs; ++i) {
    const float cos = angles[2 * i], sin = angles[2 * i + 1], low = x[i], high = x[i + pairs];
    y[i] = low * cos - high * sin;
    y[i + pairs] = high * cos + low * sin;
  }
  if (y != x) std::copy(x + 2 * pairs, x + D, y + 2 * pairs);
}

// The transpose of rotate(), of one pair
struct Pair {
  float low, high;
};
Pair rotate_back(const float* dy, const float* angles, int64_t i, int64_t pairs) {
  const float cos = angles[2 * i], sin = angles[2 * i + 1];
  return {dy[i] * cos + dy[i + pairs] * sin, dy[i + pairs] * cos - dy[i] * sin};
}

// y = x rstd (offset + weight), of one head; gives rstd.
float normalise(const float* x, const float* weight, const RotaryForward& a, float* y, int64_t D) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < D; ++i) squares += x[i] * x[i];
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(D) + a.epsilon);
  for (int64_t i = 0; i < D; ++i) y[i] = x[i] * rstd * (a.offset + weight[i]);
  return rstd;
}

// With g the gradient of the rotated dy and h = x rstd, dweight += g h: pairs first to last, which the
// channels that are not rotated follow, of the heads first_head to last_head of every row.
void add_weight_gradient(const RotaryBackward& a, float* dweight, int64_t first_head, int64_t last_head,
                         int64_t first, int64_t last) {
  const Tensor& t = a.dy.tensor;
  const int64_t N = t.shape[0] * t.shape[1], T = t.shape[1], D = t.shape[3], pairs = a.angles.shape[1];
  const View<const float> dys = heads_of<const float>(a.dy), xs = heads_of<const float>(a.x);
  for (int64_t n = 0; n < N; ++n)
    for (int64_t head = first_head; head < last_head; ++head) {
      const float *dy = dys.row_begin(n) + head * D, *x = xs.row_begin(n) + head * D;
      const float *angles = angles_at(a.angles, a.positions, {}, n, T),
                  rstd = a.rstd.as<float>()[n * a.dy.count + head];
      for (int64_t i = first; i < std::min(last, pairs); ++i) {
        const Pair g = rotate_back(dy, angles, i, pairs);
        dweight[i] += g.low * x[i] * rstd;
        dweight[i + pairs] += g.high * x[i + pairs] * rstd;
      }
      for (int64_t c = std::max(first, pairs) + pairs; c < last + pairs; ++c)
        dweight[c] += dy[c] * x[c] * rstd;
    }
}

// A head of the backward with QK norm
struct NormedHead {
  const float *dy, *angles, *x, *weight;
  float offset, rstd;
};
// dx = rstd (g - h mean(g h)) of one head, with g = offset + weight times the gradient of the rotated dy,
// h = x rstd.
void head_backward(const NormedHead& head, float* dx, int64_t pairs, int64_t D) {
  const float *dy = head.dy, *angles = head.angles, *x = head.x, *weight = head.weight;
  const float offset = head.offset, rstd = head.rstd;
  float sum_gh = 0;
#pragma omp simd reduction(+ : sum_gh)
  for (int64_t i = 0; i < pairs; ++i) {
    const Pair g = rotate_back(dy, angles, i, pairs);
    sum_gh +=
        (g.low * (offset + weight[i]) * x[i] + g.high * (offset + weight[i + pairs]) * x[i + pairs]) * rstd;
  }
  for (int64_t c = 2 * pairs; c < D; ++c) sum_gh += dy[c] * (offset + weight[c]) * x[c] * rstd;
  const float mean_gh = sum_gh / static_cast<float>(D);
#pragma omp simd  // dx may be dy itself
  for (int64_t i = 0; i < pairs; ++i) {
    const Pair g = rotate_back(dy, angles, i, pairs);
    dx[i] = rstd * (g.low * (offset + weight[i]) - x[i] * rstd * mean_gh);
    dx[i + pairs] = rstd * (g.high * (offset + weight[i + pairs]) - x[i + pairs] * rstd * mean_gh);
  }
#pragma omp simd
  for (int64_t c = 2 * pairs; c < D; ++c)
    dx[c] = rstd * (dy[c] * (offset + weight[c]) - x[c] * rstd * mean_gh);
}

}  // namespace

void run(const RotaryForward& a, const Launch& /*on*/) {
  const Tensor& t = a.x.tensor;
  const int64_t N = t.shape[0] * t.shape[1], T = t.shape[1], D = t.shape[3], heads = a.x.count;
  const View<const float> xs = heads_of<const float>(a.x);
  const View<float> ys = heads_of<float>(a.y);
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n)
    for (int64_t head = 0; head < heads; ++head) {
      const float *x = xs.row_begin(n) + head * D, *angles = angles_at(a.angles, a.positions, a.starts, n, T);
      float* y = ys.row_begin(n) + head * D;
      if (a.q_weight) {
        const Tensor& weight = head < a.query_heads ? a.q_weight : a.k_weight;
        a.rstd.as<float>()[n * heads + head] = normalise(x, weight.as<float>(), a, y, D);
        x = y;
      }
      rotate(x, angles, y, a.angles.shape[1], D);
    }
}

void run(const RotaryBackward& a, const Launch& /*on*/) {
  const Tensor& t = a.dy.tensor;
  const int64_t N = t.shape[0] * t.shape[1], T = t.shape[1], D = t.shape[3], heads = a.dy.count,
                pairs = a.angles.shape[1];
  const View<const float> dys = heads_of<const float>(a.dy);
  const View<float> dxs = heads_of<float>(a.dx);
  // The weights first: dx may be dy's own memory, so nothing below reads what was written.
  if (a.q_weight) {
    begin_gradients(a.accumulate, {a.dq_weight, a.dk_weight});
#pragma omp parallel for
    for (int64_t first = 0; first < D - pairs; first += kChunk) {
      const int64_t last = std::min(D - pairs, first + kChunk);
      add_weight_gradient(a, a.dq_weight.as<float>(), 0, a.query_heads, first, last);
      add_weight_gradient(a, a.dk_weight.as<float>(), a.query_heads, heads, first, last);
    }
  }
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n)
    for (int64_t head = 0; head < heads; ++head) {
      const float *dy = dys.row_begin(n) + head * D, *angles = angles_at(a.angles, a.positions, {}, n, T);
      float* dx = dxs.row_begin(n) + head * D;
      if (a.q_weight) {
        const float* x = heads_of<const float>(a.x).row_begin(n) + head * D;
        const Tensor& weight = head < a.query_heads ? a.q_weight : a.k_weight;
        head_backward({.dy = dy,
                       .angles = angles,
                       .x = x,
                       .weight = weight.as<float>(),
                       .offset = a.offset,
                       .rstd = a.rstd.as<float>()[n * heads + head]},
                      dx, pairs, D);
        continue;
      }
#pragma omp simd
      for (int64_t i = 0; i < pairs; ++i) {
        const Pair g = rotate_back(dy, angles, i, pairs);
        dx[i] = g.low;
        dx[i + pairs] = g.high;
      }
      if (dx != dy) std::copy(dy + 2 * pairs, dy + D, dx + 2 * pairs);
    }
}

}  // namespace tessera::cpu
