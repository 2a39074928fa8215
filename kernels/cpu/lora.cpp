#include <cblas.h>

#include <cstring>

#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {

// u = scale x A^T; then, for each layer of the matrix, its columns of y = add + its columns of u B^T
void run(const LoraForward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.b.shape[0], r = a.b.shape[1], width = a.a.shape[0];
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, width, C, a.scale, a.x.as<float>(), C,
              a.a.as<float>(), C, 0.0f, a.u.as<float>(), width);
  if (a.add && a.add.data != a.y.data) std::memcpy(a.y.data, a.add.data, a.y.bytes());
  int64_t first = 0;
  for (int64_t p = 0; p < count_of(a.parts); first += a.parts[static_cast<size_t>(p++)])
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, a.parts[static_cast<size_t>(p)], r, 1.0f,
                a.u.as<float>() + p * r, width, a.b.as<float>() + first * r, r, a.add ? 1.0f : 0.0f,
                a.y.as<float>() + first, O);
}

// For each layer of the matrix: dB += dy^T u, and du = dy B over u. Then dA += scale du^T x, and
// dx = scale du A: last, as it may overwrite x.
void run(const LoraBackward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.b.shape[0], r = a.b.shape[1], width = a.a.shape[0];
  const float beta = a.accumulate ? 1.0f : 0.0f;
  int64_t first = 0;
  for (int64_t p = 0; p < count_of(a.parts); first += a.parts[static_cast<size_t>(p++)]) {
    const int64_t rows = a.parts[static_cast<size_t>(p)];
    const float* dy = a.dy.as<float>() + first;
    float* u = a.u.as<float>() + p * r;
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, rows, r, N, 1.0f, dy, O, u, width, beta,
                a.db.as<float>() + first * r, r);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, r, rows, 1.0f, dy, O,
                a.b.as<float>() + first * r, r, 0.0f, u, width);
  }
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, width, C, N, a.scale, a.u.as<float>(), width,
              a.x.as<float>(), C, beta, a.da.as<float>(), C);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, C, width, a.scale, a.u.as<float>(), width,
              a.a.as<float>(), C, 0.0f, a.dx.as<float>(), C);
}

}  // namespace tessera::cpu
