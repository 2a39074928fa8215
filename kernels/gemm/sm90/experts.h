// The products of a mixture of experts for compute capability 9.0, with sums in fp32, rounded once to bf16.
// Operands are bf16. ExpertProducts also takes FP8, and tensor cores add FP8 products with some 14 bits.
// Rows are sorted by their experts: expert e has the rows offsets[e] to offsets[e + 1] - 1, any number of
// them. A gathered operand has the rows of tokens; its row r is row numbers[r] / active. Such rows go
// directly to shared memory, so no copy of them exists. Same arguments, same bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/sm90/problem.h"

namespace tessera::gemm {

struct ExpertRows {
  const int32_t* offsets;  // [experts + 1], on the device
  int64_t experts, rows;
  const int32_t* numbers = nullptr;  // [rows]; none: no operand is gathered
  int64_t active = 1;
};

// d[r] = a[r] b[e] + bias[e] for the rows r of expert e. d is [rows, n]; a is [rows, k] or has the rows of
// tokens; b is [experts, k, n], or with `transposed` [experts, n, k]; bias is [experts, n] or none. n and k
// are multiples of 64. In FP8 b is `transposed`, in e4m3, and k is at most kMostFp8Sums.
struct ExpertProducts {
  ExpertRows of;
  const void *a, *b, *bias;
  void* d;
  int64_t n, k;
  bool transposed;
  Operands operands = Operands::kBf16;                 // a's format
  const float *a_scale = nullptr, *b_scale = nullptr;  // in FP8; on the device
};

// d[e] is, or with `accumulate` gets added, the sum over the rows r of expert e of gathered[r]^T other[r]. If
// the gathered operand is the second one it is other[r]^T gathered[r]. gathered is [tokens, gathered_columns]
// and other [rows, other_columns], both multiples of 8. After the rows of the last expert `other` may have
// anything but NaN and infinities.
struct ExpertWeightGradients {
  ExpertRows of;
  const void *gathered, *other;
  void* d;
  int64_t gathered_columns, other_columns;
  bool gathered_is_first, accumulate;
};

// Whether kernels serve it, if available(): the sizes are as above, and addresses are multiples of 16 bytes
bool serves(const ExpertProducts& p);
bool serves(const ExpertWeightGradients& p);

void run(const ExpertProducts& p, int multiprocessors, cudaStream_t stream);
void run(const ExpertWeightGradients& p, int multiprocessors, cudaStream_t stream);

// The kernels, in builds that have them
cudaError_t run_expert_products(const ExpertProducts& p, int multiprocessors, cudaStream_t stream);
cudaError_t run_expert_weight_gradients(const ExpertWeightGradients& p, int multiprocessors,
                                        cudaStream_t stream);

}  // namespace tessera::gemm
