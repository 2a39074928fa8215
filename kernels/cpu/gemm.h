// GEMMs on all threads. OpenBLAS multiplies tiles of the result, each on one thread. Their size depends on
// the shape alone, so the bits do not depend on the number of threads. By itself OpenBLAS cuts the result
// into a part for each thread, and its kernels for AVX2 add in another order at the end of a part.
#pragma once

#include <cstdint>

namespace tessera::cpu {

// An fp32 matrix in memory, or its transpose; `row` numbers from the start of a row in memory to the next.
struct Matrix {
  const float* data;
  int64_t row;
  bool transposed = false;
};

// `result` (rows x columns, `row` numbers from row to row) = scale A B + keep result, with A of rows x terms
// and B of terms x columns. With keep = 0, result may be uninitialised. It must overlap neither operand.
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
