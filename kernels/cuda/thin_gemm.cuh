// Products of the rows of experts with thin matrices, in bf16 through mma with fp32 sums. Adapters have
// them, since their rank is small, and so has a router. They take as long as it takes to read the wide
// matrix, or to read and write it.
//
//   thin     u[r, :] = scale X[r, :] M[e], for the rows r of every expert e. A warp has 32 rows and all
//            columns of u.
//   wide     y[r, :] = add[r, :] + U[r, :] M[e]. U and M are in shared memory. Both: thin_rows.cuh
//   weights  D[e] (+)= the sum over the rows r of e of X[r, :]^T (w_r U[r, :]), or its transpose. A block has
//            128 columns of X and up to 64 of U: thin_weights.cuh
// U may be fp32 in the last two, which is split into two bf16, so that 16 bits of it count.
//
// Wide matrices go between registers and memory in packs of 16 bytes. A lane of mma holds pairs of elements
// that are 8 apart, where a pack has 8 in a row: so the lanes of thin and wide give the columns of a group of
// 32 other numbers, which M follows. Thin matrices pass through shared memory.
// X may be gathered: row r is numbers[r] / active. Sums have one order: the same bits each time, whatever the
// other rows are.
#pragma once

#include "kernels/cuda/experts_gemm.cuh"
#include "kernels/cuda/launch.cuh"

namespace tessera::cuda::thin_gemm {

using expert_gemm::Experts, expert_gemm::Found, expert_gemm::find_tile;

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
constexpr int kMostRank = 64;    // of thin, of wide with a U in bf16, and of a block of weights
constexpr int kMostTerms = 128;  // of wide with a U in fp32

// The gathered matrix
struct Rows {
  const bf16* data;
  int64_t columns;
  const int32_t* numbers = nullptr;  // null: row r itself
  int active = 1;

  __device__ const bf16* row(int64_t r) const { return data + (numbers ? numbers[r] / active : r) * columns; }
};

template <class T>
__device__ __forceinline__ uint32_t shared_address(const T* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// A thin operand in shared memory, of fp32 in two parts whose sum it is

template <class U>
constexpr int kPartsOf = std::is_same_v<U, float> ? 2 : 1;

// 16 bytes of a row
__device__ __forceinline__ void store_parts(uint4 pack, bf16 /*type*/, bf16* to, int64_t /*other*/) {
  *reinterpret_cast<uint4*>(to) = pack;
}
__device__ __forceinline__ void store_parts(uint4 pack, float /*type*/, bf16* to, int64_t other) {
  const float x[4] = {__uint_as_float(pack.x), __uint_as_float(pack.y), __uint_as_float(pack.z),
                      __uint_as_float(pack.w)};
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t rounded = ptx::pack_bf16(x[i], x[i + 1]);
    *reinterpret_cast<uint32_t*>(to + i) = rounded;
    *reinterpret_cast<uint32_t*>(to + other + i) = ptx::pack_bf16(
        x[i] - __uint_as_float(rounded << 16), x[i + 1] - __uint_as_float(rounded & 0xffff0000u));
  }
}

inline bool has_packs(const Tensor& matrix) {
  return matrix.dtype == DType::kBF16 && expert_gemm::has_packs<bf16>(matrix);
}

template <class Run>
void with_rank(int64_t rank, const Run& run) {
  if (rank <= 16) return run.template operator()<16>();
  if (rank <= 32) return run.template operator()<32>();
  run.template operator()<kMostRank>();
}

}  // namespace tessera::cuda::thin_gemm
