#include "kernels/gemm/sm90/experts.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/shape.h"

namespace tessera::gemm {
namespace {

// The number of 16-byte chunks in a gathered operand
int64_t chunks_of(const ExpertRows& rows, int64_t columns) {
  return cuda::divide_up(rows.rows, rows.active) * columns / 8;
}

}  // namespace

bool serves(const ExpertProducts& p) {
  const bool fp8 = p.operands != Operands::kBf16;
  return (p.n | p.k) % kBlockK == 0 && (!fp8 || (p.transposed && p.k <= kMostFp8Sums)) &&
         is_aligned(p.a, kAlignment) && is_aligned(p.b, kAlignment) && is_aligned(p.d, kAlignment) &&
         is_aligned(p.bias, 4) && std::max(p.of.rows, p.of.experts * std::max(p.n, p.k)) <= INT32_MAX / 2 &&
         chunks_of(p.of, p.k) <= INT32_MAX;
}

bool serves(const ExpertWeightGradients& p) {
  return p.of.numbers && (p.gathered_columns | p.other_columns) * 2 % kAlignment == 0 &&
         is_aligned(p.gathered, kAlignment) && is_aligned(p.other, kAlignment) &&
         is_aligned(p.d, kAlignment) && p.of.rows <= INT32_MAX / 2 &&
         chunks_of(p.of, p.gathered_columns) <= INT32_MAX;
}

void run(const ExpertProducts& p, int multiprocessors, cudaStream_t stream) {
#ifdef TESSERA_GEMM_SM90
  const cudaError_t status = run_expert_products(p, multiprocessors, stream);
  check(status == cudaSuccess,
        "our products of {} experts, [{}, {}] x [{}, {}] of all, cannot be launched: {}", p.of.experts,
        p.of.rows, p.k, p.k, p.n, cudaGetErrorString(status));
#else
  (void)p, (void)multiprocessors, (void)stream;
  fail(kNoKernels);
#endif
}

void run(const ExpertWeightGradients& p, int multiprocessors, cudaStream_t stream) {
#ifdef TESSERA_GEMM_SM90
  const cudaError_t status = run_expert_weight_gradients(p, multiprocessors, stream);
  check(status == cudaSuccess,
        "our weight gradients of {} experts, of {} rows with {} and {} columns, cannot be launched: {}",
        p.of.experts, p.of.rows, p.gathered_columns, p.other_columns, cudaGetErrorString(status));
#else
  (void)p, (void)multiprocessors, (void)stream;
  fail(kNoKernels);
#endif
}

}  // namespace tessera::gemm
