// The products of a mixture of experts for compute capability 9.0, in bf16 with sums in fp32, rounded once.
// Rows are sorted by their experts: those of expert e are offsets[e] .. offsets[e + 1], any number of them. A
// gathered operand has the rows of tokens, of which row r is number numbers[r] / active: they go from there
// to shared memory, and no copy of them exists. Same arguments, same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace tessera::gemm {

struct ExpertRows {
  const int32_t* offsets;  // [experts + 1], on the device
  int64_t experts, rows;
  const int32_t* numbers = nullptr;  // [rows]; none: no operand is gathered
  int64_t active = 1;
};

// d[r] = a[r] b[e] + bias[e]: d [rows, n], a [rows, k] or of tokens, b [experts, k, n], or with `transposed`
// [experts, n, k], bias [experts, n] or none. n and k are multiples of 64.
struct ExpertProducts {
  ExpertRows of;
  const void *a, *b, *bias;
  void* d;
  int64_t n, k;
  bool transposed;
};

// d[e] (+)= the sum over the rows r of expert e of gathered[r]^T other[r], or where the gathered one is the
// second, other[r]^T gathered[r]: gathered [tokens, `gathered_columns`], other [rows, `other_columns`], both
// multiples of 8. Behind the rows of the last expert `other` may be anything but NaN and infinities.
struct ExpertWeightGradients {
  ExpertRows of;
  const void *gathered, *other;
  void* d;
  int64_t gathered_columns, other_columns;
  bool gathered_is_first, accumulate;
};

// Whether there are kernels for it where available(): sizes as above, addresses multiples of 16 bytes
bool serves(const ExpertProducts& p);
bool serves(const ExpertWeightGradients& p);

void run(const ExpertProducts& p, int multiprocessors, cudaStream_t stream);
void run(const ExpertWeightGradients& p, int multiprocessors, cudaStream_t stream);

// The kernels, where there are some
cudaError_t run_expert_products(const ExpertProducts& p, int multiprocessors, cudaStream_t stream);
cudaError_t run_expert_weight_gradients(const ExpertWeightGradients& p, int multiprocessors,
                                        cudaStream_t stream);

}  // namespace tessera::gemm
