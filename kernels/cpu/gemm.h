// GEMMs on all threads. OpenBLAS multiplies tiles of the result, each on one thread. The size of a tile
// depends only on the shape, so the bits do not depend on the number of threads. By itself OpenBLAS would cut
// the result into a part for each thread, and its kernels for AVX2 add in another order at the end of a part.
#pragma once

#include <cstdint>

namespace tessera::cpu {

// An fp32 matrix in memory, or its transpose. `row`: the elements from the start of a row in memory to the
// start of the next
struct Matrix {
  const float* data;
  int64_t row;
  bool transposed = false;
};

// `result` [rows, columns] = scale A B + keep result, with A [rows, terms] and B [terms, columns]; `row` is
// the distance between its rows. With keep = 0, result may be uninitialised. It must overlap neither operand.
struct Gemm {
  int64_t rows, columns, terms;
  float scale = 1;
  Matrix a, b;
  float keep = 0;
  float* result;
  int64_t row;
};
void multiply(const Gemm& gemm);

}  // namespace tessera::cpu
