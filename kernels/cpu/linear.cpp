#include <algorithm>
#include <cstring>

#include "kernels/activations.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_values.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gradients.h"
#include "kernels/cpu/vector_math.h"

namespace tessera::cpu {
namespace {

template <class A>
void activate(const Tensor& input, const Tensor& output) {
  const int64_t N = input.shape[0], O = input.shape[1];
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float* u = input.as<float>() + n * O;
    float* y = output.as<float>() + n * O;
#pragma omp simd
    for (int64_t o = 0; o < O; ++o) y[o] = A::value(u[o]);
  }
}

// d *= derivative(input)
template <class A>
void activate_backward(const Tensor& input, const Tensor& d) {
  const int64_t N = input.shape[0], C = input.shape[1];
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float* u = input.as<float>() + n * C;
    float* dx = d.as<float>() + n * C;
#pragma omp simd
    for (int64_t c = 0; c < C; ++c) dx[c] *= A::derivative(u[c]);
  }
}

// Up to so many rows a GEMM takes as long as reading the weight once; BLAS would copy it into tiles first.
// A row of the result does not depend on the others.
constexpr int64_t kFewRows = 8;

void multiply_few_rows(const LinearForward& a, const Tensor& out) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
#pragma omp parallel for
  for (int64_t o = 0; o < O; ++o) {
    const float* w = a.weight.as<float>() + o * C;
    const float bias = a.bias ? a.bias.as<float>()[o] : 0.0f;
    for (int64_t n = 0; n < N; ++n) {
      const float* x = a.x.as<float>() + n * C;
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < C; ++c) sum += x[c] * w[c];
      out.as<float>()[n * O + o] = sum + ((a.add ? a.add.as<float>()[n * O + o] : 0.0f) + bias);
    }
  }
}

void multiply_many_rows(const LinearForward& a, const Tensor& out) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  const float* bias = a.bias ? a.bias.as<float>() : nullptr;
  const bool prefilled = a.bias || a.add;  // the GEMM then adds to what stands there
  if (prefilled) {
#pragma omp parallel for
    for (int64_t n = 0; n < N; ++n) {
      float* y = out.as<float>() + n * O;
      const float* add = a.add ? a.add.as<float>() + n * O : nullptr;
      for (int64_t o = 0; o < O; ++o) y[o] = (add ? add[o] : 0.0f) + (bias ? bias[o] : 0.0f);
    }
  }
  multiply({.rows = N,
            .columns = O,
            .terms = C,
            .a = {a.x.as<float>(), C},
            .b = {a.weight.as<float>(), C, true},
            .keep = prefilled ? 1.0f : 0.0f,
            .result = out.as<float>(),
            .row = O});
}

}  // namespace

void run(const LinearForward& given, const Launch& /*on*/) {
  LinearForward a = given;
  if (a.fp8_x) a.x = a.fp8_x.data, a.weight = a.fp8_weight.data;  // in fp32, see Fp8Matrix
  const Tensor& sum = a.pre_activation ? a.pre_activation : a.y;
  if (a.x.shape[0] <= kFewRows) {
    multiply_few_rows(a, sum);
  } else {
    multiply_many_rows(a, sum);
  }
  if (a.pre_activation)
    with_activation<Math>(a.activation, [&]<class A>(A) { activate<A>(a.pre_activation, a.y); });
  write_fp8(a.y, DType::kE4M3, a.fp8_y);
}

void run(const FusedLinear& a, const Launch& on) {
  a.each_plain([&](const auto& op) { run(op, on); });
}

// y = x W^T + b:  dW += dy^T x,  db += the sum of dy's rows,  dx = dy W: last, as it may overwrite x.
void run(const LinearBackward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.weight.shape[0];
  const float* dy = a.dy.as<float>();
  begin_gradients(a.accumulate, {a.dbias, a.dx_sum});
  const bool fp8_dweight = static_cast<bool>(a.fp8_x_transposed);
  if (a.dweight)
    multiply(
        {.rows = O,
         .columns = C,
         .terms = N,
         .a = fp8_dweight ? Matrix{a.fp8_dy_transposed.data.as<float>(), N} : Matrix{dy, O, true},
         .b = fp8_dweight ? Matrix{a.fp8_x_transposed.data.as<float>(), N, true} : Matrix{a.x.as<float>(), C},
         .keep = a.accumulate ? 1.0f : 0.0f,
         .result = a.dweight.as<float>(),
         .row = C});
  if (a.dbias) add_rows(a.dy, a.dbias);
  if (a.add && a.add.data != a.dx.data) std::memcpy(a.dx.data, a.add.data, a.dx.bytes());
  multiply({.rows = N,
            .columns = C,
            .terms = O,
            .a = {a.fp8_dy ? a.fp8_dy.data.as<float>() : dy, O},
            .b = a.fp8_dy ? Matrix{a.fp8_weight.data.as<float>(), O, true} : Matrix{a.weight.as<float>(), C},
            .keep = a.add ? 1.0f : 0.0f,
            .result = a.dx.as<float>(),
            .row = C});
  if (a.pre_activation)
    with_activation<Math>(a.activation, [&]<class A>(A) { activate_backward<A>(a.pre_activation, a.dx); });
  if (a.dx_sum) add_rows(a.dx, a.dx_sum);
  write_fp8(a.dx, DType::kE5M2, a.fp8_dx);
}

}  // namespace tessera::cpu
