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
