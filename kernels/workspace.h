// The bytes of workspace of each operation, by device. Only host arithmetic, so that a plan needs no device.
// Operations that are not listed need none.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::cpu {

// The gradient norm stores the partial sums of this many blocks at a time.
inline constexpr int64_t kNormBlocks = 4096;
inline constexpr int64_t kNormBytes = kNormBlocks * static_cast<int64_t>(sizeof(double));

}  // namespace tessera::cpu

namespace tessera::cuda {

constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }

// For cuBLASLt NVIDIA recommends 32 MiB on Hopper; with less memory fewer algorithms are available.
inline constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

// Column sums (gradients of biases and of the norms' parameters) store a row of partial sums for each slab of
// rows. This is the largest number of slabs.
inline constexpr int64_t kMaxSlabs = 1056;  // 8 blocks on each of an H200's 132 multiprocessors
inline int64_t column_partials_bytes(int64_t slabs, int64_t columns) { return slabs * columns * 4; }

// The embedding backward sorts rows by token or by position, and cuts them into windows with up to two
// partial sums each. The positions lie where the partial sums will be.
inline constexpr int64_t kEmbeddingWindow = 32;
inline int64_t embedding_sort_bytes(int64_t rows) { return (int64_t{4} << 20) + 16 * rows; }
inline int64_t embedding_backward_bytes(int64_t rows, int64_t channels) {
  const int64_t index = divide_up(rows * 4, 256) * 256;
  const int64_t partials = divide_up(rows, kEmbeddingWindow) * 2 * channels * 4;
  return 3 * index + embedding_sort_bytes(rows) + std::max(partials, index);
}

}  // namespace tessera::cuda
