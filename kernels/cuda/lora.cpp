#include "kernels/cuda/cuda_backend.h"

namespace tessera {
namespace {

// A column of a tensor of rows, where a layer's outputs begin
void* column(const Tensor& tensor, int64_t first) {
  return tensor.as<char>() + first * static_cast<int64_t>(size_of(tensor.dtype));
}

}  // namespace

// u = scale x A^T; then, for each layer of the matrix, its columns of y = add + its columns of u B^T
void CudaBackend::run_op(const LoraForward& a, const Launch& on) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.b.shape[0], r = a.b.shape[1], width = a.a.shape[0];
  gemm({.dtype = a.x.dtype,
        .m = N,
        .n = width,
        .k = C,
        .a = {.data = a.x.data, .ld = C},
        .b = {.data = a.a.data, .ld = C, .transposed = true},
        .d = {.data = a.u.data, .ld = width},
        .alpha = a.scale},
       on);
  int64_t first = 0;
  for (int64_t p = 0; p < count_of(a.parts); first += a.parts[static_cast<size_t>(p++)])
    gemm({.dtype = a.x.dtype,
          .m = N,
          .n = a.parts[static_cast<size_t>(p)],
          .k = r,
          .a = {.data = column(a.u, p * r), .ld = width},
          .b = {.data = column(a.b, first * r), .ld = r, .transposed = true},
          .d = {.data = column(a.y, first), .ld = O},
          .c = a.add ? column(a.add, first) : nullptr,
          .beta = a.add ? 1.0f : 0.0f},
         on);
}

// For each layer of the matrix: dB += dy^T u, and du = dy B over u. Then dA += scale du^T x, and
// dx = scale du A: last, as it may overwrite x.
void CudaBackend::run_op(const LoraBackward& a, const Launch& on) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], O = a.b.shape[0], r = a.b.shape[1], width = a.a.shape[0];
  const DType dtype = a.x.dtype;
  int64_t first = 0;
  for (int64_t p = 0; p < count_of(a.parts); first += a.parts[static_cast<size_t>(p++)]) {
    const int64_t rows = a.parts[static_cast<size_t>(p)];
    gemm({.dtype = dtype,
          .m = rows,
          .n = r,
          .k = N,
          .a = {.data = column(a.dy, first), .ld = O, .transposed = true},
          .b = {.data = column(a.u, p * r), .ld = width},
          .d = {.data = column(a.db, first * r), .ld = r},
          .beta = 1},
         on);
    gemm({.dtype = dtype,
          .m = N,
          .n = r,
          .k = rows,
          .a = {.data = column(a.dy, first), .ld = O},
          .b = {.data = column(a.b, first * r), .ld = r},
          .d = {.data = column(a.u, p * r), .ld = width}},
         on);
  }
  gemm({.dtype = dtype,
        .m = width,
        .n = C,
        .k = N,
        .a = {.data = a.u.data, .ld = width, .transposed = true},
        .b = {.data = a.x.data, .ld = C},
        .d = {.data = a.da.data, .ld = C},
        .alpha = a.scale,
        .beta = 1},
       on);
  gemm({.dtype = dtype,
        .m = N,
        .n = C,
        .k = width,
        .a = {.data = a.u.data, .ld = width},
        .b = {.data = a.a.data, .ld = C},
        .d = {.data = a.dx.data, .ld = C},
        .alpha = a.scale},
       on);
}

}  // namespace tessera
