// What the backward keeps in its workspace. Plain C++: the size is asked for on machines without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::attention {

// Hands out pieces of one buffer; with no buffer it only measures.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<uint8_t*>(memory)) {}

  template <class T>
  T* take(size_t count) {
    T* piece = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlignment = 256;
  uint8_t* memory_;
  size_t used_ = 0;
};

namespace sm80 {

// Rows are padded to whole query tiles: the main kernel copies row statistics without asking where N ends.
struct BackwardWorkspace {
  static constexpr int kRowPadding = 64;  // a multiple of every kBlockQ

  BackwardWorkspace(void* memory, int64_t batch, int64_t heads, int64_t tokens, int head_dim) {
    Carver carver(memory);
    padded_tokens = (tokens + kRowPadding - 1) / kRowPadding * kRowPadding;
    const auto rows = static_cast<size_t>(batch * heads * padded_tokens);
    log2_sum_exp = carver.take<float>(rows);
    delta = carver.take<float>(rows);
    dq = carver.take<float>(rows * static_cast<size_t>(head_dim));
    counters = carver.take<uint32_t>(rows / kSmallestBlockQ + 1);
    bytes = carver.used();
  }

  static constexpr int kSmallestBlockQ = 32;
  int64_t padded_tokens;
  float* log2_sum_exp;  // [B, H, padded N]: LSE log2(e), +inf past N, where the probabilities thus become 0
  float* delta;         // [B, H, padded N]: rowsum(dO o O), 0 past N
  float* dq;            // [B, H, query tile, kBlockQ D]: sums in the order of the main kernel's registers
  uint32_t* counters;   // [0]: the next ticket; [1 + tile]: key blocks that have added to a query tile
  size_t bytes;
};

}  // namespace sm80

namespace sm90 {

// Rows are padded to whole query tiles: the copy engine brings row statistics without asking where N ends.
struct BackwardWorkspace {
  static constexpr int kRowPadding = 128;  // a multiple of every kBlockQ
  static constexpr int kSmallestBlockQ = 64;
  static constexpr int kPartsPerTile = 2;  // each of one warpgroup, with a counter of its own

  BackwardWorkspace(void* memory, int64_t batch, int64_t heads, int64_t tokens, int head_dim) {
    Carver carver(memory);
    const int64_t padded_tokens = (tokens + kRowPadding - 1) / kRowPadding * kRowPadding;
    const auto rows = static_cast<size_t>(batch * heads * padded_tokens);
    row_statistics = carver.take<float>(rows * 2);
    dq = carver.take<float>(rows * static_cast<size_t>(head_dim));
    counters = carver.take<uint32_t>(rows / kSmallestBlockQ * kPartsPerTile + 1);
    bytes = carver.used();
  }

  float* row_statistics;  // [B, H, query tile, 2, kBlockQ]: LSE log2(e), +inf past N, where the probabilities
                          // thus become 0; and delta = rowsum(dO o O), 0 past N
  float* dq;              // [B, H, query tile, part, 64 x 64]: sums in the order of a warpgroup's registers
  uint32_t* counters;     // [0]: the next ticket; [1 + 2 tile + part]: key blocks that have added to it
  size_t bytes;
};

}  // namespace sm90

namespace f32 {

struct BackwardWorkspace {
  BackwardWorkspace(void* memory, int64_t batch, int64_t heads, int64_t tokens) {
    Carver carver(memory);
    delta = carver.take<float>(static_cast<size_t>(batch * heads * tokens));
    bytes = carver.used();
  }

  float* delta;  // [B, H, N]: rowsum(dO o O)
  size_t bytes;
};

}  // namespace f32

}  // namespace tessera::attention
