#include <cstring>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gemm.h"

namespace tessera::cpu {

// u = scale x A^T; then, for each layer of the matrix, its columns of y = add + its columns of u B^T
void run(const LoraForward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.b.shape[0], r = a.b.shape[1], width = a.a.shape[0];
  multiply({.rows = N,
            .columns = width,
            .terms = C,
            .scale = a.scale,
            .a = {a.x.as<float>(), C},
            .b = {a.a.as<float>(), C, true},
            .result = a.u.as<float>(),
            .row = width});
  if (a.add && a.add.data != a.y.data) std::memcpy(a.y.data, a.add.data, a.y.bytes());
  int64_t first = 0;
  for (int64_t p = 0; p < count_of(a.parts); first += a.parts[static_cast<size_t>(p++)])
    multiply({.rows = N,
              .columns = a.parts[static_cast<size_t>(p)],
              .terms = r,
              .a = {a.u.as<float>() + p * r, width},
              .b = {a.b.as<float>() + first * r, r, true},
              .keep = a.add ? 1.0f : 0.0f,
              .result = a.y.as<float>() + first,
              .row = O});
}

// For each layer of the matrix: dB += dy^T u, and du = dy B over u. Then dA += scale du^T x, and
// dx = scale du A: last, as it may overwrite x.
void run(const LoraBackward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.b.shape[0], r = a.b.shape[1], width = a.a.shape[0];
  const float keep = a.accumulate ? 1.0f : 0.0f;
  const float *x = a.x.as<float>(), *u = a.u.as<float>();
  int64_t first = 0;
  for (int64_t p = 0; p < count_of(a.parts); first += a.parts[static_cast<size_t>(p++)]) {
    const int64_t rows = a.parts[static_cast<size_t>(p)];
    const float* dy = a.dy.as<float>() + first;
    multiply({.rows = rows,
              .columns = r,
              .terms = N,
              .a = {dy, O, true},
              .b = {u + p * r, width},
              .keep = keep,
              .result = a.db.as<float>() + first * r,
              .row = r});
    multiply({.rows = N,
              .columns = r,
              .terms = rows,
              .a = {dy, O},
              .b = {a.b.as<float>() + first * r, r},
              .result = a.u.as<float>() + p * r,
              .row = width});
  }
  multiply({.rows = width,
            .columns = C,
            .terms = N,
            .scale = a.scale,
            .a = {u, width, true},
            .b = {x, C},
            .keep = keep,
            .result = a.da.as<float>(),
            .row = C});
  if (a.add && a.add.data != a.dx.data) std::memcpy(a.dx.data, a.add.data, a.dx.bytes());
  multiply({.rows = N,
            .columns = C,
            .terms = width,
            .scale = a.scale,
            .a = {u, width},
            .b = {a.a.as<float>(), C},
            .keep = a.add ? 1.0f : 0.0f,
            .result = a.dx.as<float>(),
            .row = C});
}

}  // namespace tessera::cpu
