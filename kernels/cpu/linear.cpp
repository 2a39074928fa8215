#include <cblas.h>

#include <algorithm>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {

void linear_forward(const LinearForward& a) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  const Tensor& product = a.gelu_input ? a.gelu_input : a.y;
  const float* bias = a.bias ? a.bias.as<float>() : nullptr;
  const bool prefilled = a.bias || a.add;  // the product is then added to what stands there
  if (prefilled) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      float* y = product.as<float>() + n * O;
      const float* add = a.add ? a.add.as<float>() + n * O : nullptr;
      for (int64_t o = 0; o < O; ++o) y[o] = (add ? add[o] : 0.0f) + (bias ? bias[o] : 0.0f);
    }
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, O, C, 1.0f, a.x.as<float>(), C,
              a.weight.as<float>(), C, prefilled ? 1.0f : 0.0f, product.as<float>(), O);
  if (a.gelu_input) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      const float* u = a.gelu_input.as<float>() + n * O;
      float* y = a.y.as<float>() + n * O;
#pragma omp simd
      for (int64_t o = 0; o < O; ++o) y[o] = gelu(u[o]);
    }
  }
}

// y = x W^T + b:  dW += dy^T x,  db += the sum of dy's rows,  dx = dy W: last, as it may overwrite x.
void linear_backward(const LinearBackward& a) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  const float* dy = a.dy.as<float>();
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, O, C, N, 1.0f, dy, O, a.x.as<float>(), C, 1.0f,
              a.dweight.as<float>(), C);
  if (a.dbias) {
    constexpr int64_t kChunk = 64;  // features a task owns
#pragma omp parallel for
    for (int64_t first = 0; first < O; first += kChunk) {
      const int64_t last = std::min(O, first + kChunk);
      for (int64_t n = 0; n < N; ++n)
        for (int64_t o = first; o < last; ++o) a.dbias.as<float>()[o] += dy[n * O + o];
    }
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, C, O, 1.0f, dy, O, a.weight.as<float>(), C, 0.0f,
              a.dx.as<float>(), C);
  if (a.gelu_input) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      const float* u = a.gelu_input.as<float>() + n * C;
      float* dx = a.dx.as<float>() + n * C;
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) dx[c] *= gelu_derivative(u[c]);
    }
  }
}

}  // namespace tessera::cpu
