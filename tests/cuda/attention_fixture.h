// Device buffers and layouts for tests of attention.h. Outputs start as NaN, buffers have guard bytes.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/attention_reference.h"

namespace tessera::test {

inline void cuda_ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

inline uint16_t to_bf16(float x) {  // round to nearest, ties to even
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

// Device memory between two guards. All of it starts as 0xff bytes: NaN in bf16 and in fp32.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes) : bytes_(bytes) {
    cuda_ok(cudaMalloc(reinterpret_cast<void**>(&memory_), bytes + 2 * kGuard));
    poison();
  }
  ~GuardedBuffer() { cudaFree(memory_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  uint8_t* data() const { return memory_ + kGuard; }
  size_t bytes() const { return bytes_; }
  void poison() { cuda_ok(cudaMemset(memory_, 0xff, bytes_ + 2 * kGuard)); }
  void upload(const std::vector<uint8_t>& from) {
    cuda_ok(cudaMemcpy(data(), from.data(), bytes_, cudaMemcpyHostToDevice));
  }
  // The bytes between the guards, which must still be as they were
  std::vector<uint8_t> download() const {
    expect_guard(memory_, "before");
    expect_guard(memory_ + kGuard + bytes_, "behind");
    std::vector<uint8_t> inside(bytes_);
    cuda_ok(cudaMemcpy(inside.data(), data(), bytes_, cudaMemcpyDeviceToHost));
    return inside;
  }

 private:
  static constexpr size_t kGuard = 1024;

  static void expect_guard(const uint8_t* guard, const char* where) {
    std::vector<uint8_t> bytes(kGuard);
    cuda_ok(cudaMemcpy(bytes.data(), guard, kGuard, cudaMemcpyDeviceToHost));
    EXPECT_EQ(bytes, std::vector<uint8_t>(kGuard, 0xff)) << "a byte " << where << " a buffer was written";
  }

  uint8_t* memory_ = nullptr;
  size_t bytes_;
};

// Where element (b, t, h, 0) of a tensor is, in elements from the start of its buffer
struct Layout {
  int64_t offset, batch, row, head;
  int64_t heads, tokens;
};

// [B, T, heads + 2 kv_heads, D]; the same with a gap behind each head; or tensors of their own with gaps
// between rows, as keys of another number than queries must be. Gaps hold NaN: what is read there shows in
// the results, what is written in the gaps.
enum class Packing { kPackedQkv, kPackedApart, kSeparate };
inline const char* name_of(Packing packing) {
  return packing == Packing::kPackedQkv ? "packed" : packing == Packing::kPackedApart ? "apart" : "separate";
}

// Q, K, V in one buffer and O in another; gradients alike
struct Layouts {
  Layout q, k, v, out;
  size_t qkv_elements, out_elements;

  Layouts(const AttentionCase& c, Packing packing) {
    const int64_t t = c.tokens, d = c.head_dim;
    if (packing != Packing::kSeparate) {
      EXPECT_EQ(c.kv_tokens, t) << "a packed projection has as many keys as queries";
      const int64_t head = packing == Packing::kPackedQkv ? d : d + 40;
      const int64_t row = (c.heads + 2 * c.kv_heads) * head;
      q = {0, t * row, row, head, c.heads, t};
      k = {c.heads * head, t * row, row, head, c.kv_heads, t};
      v = {(c.heads + c.kv_heads) * head, t * row, row, head, c.kv_heads, t};
      out = {0, t * c.heads * head, c.heads * head, head, c.heads, t};
      qkv_elements = c.batch * t * row, out_elements = c.rows() * head;
    } else {  // heads outside tokens, unused elements in a row, and K and V with strides of their own
      const auto make = [&](int64_t offset, int64_t gap, int64_t heads, int64_t tokens) {
        const int64_t row = d + gap;
        return Layout{offset, heads * tokens * row, row, tokens * row, heads, tokens};
      };
      q = make(0, 16, c.heads, t);
      k = make(c.rows() * (d + 16), 8, c.kv_heads, c.kv_tokens);
      v = make(k.offset + c.kv_rows() * (d + 8), 24, c.kv_heads, c.kv_tokens);
      out = make(0, 32, c.heads, t);
      qkv_elements = v.offset + c.kv_rows() * (d + 24), out_elements = c.rows() * (d + 32);
    }
  }
};

// Moves [B, heads, tokens, D] doubles into and out of a host image of a buffer
struct Elements {
  const AttentionCase& c;
  bool bf16;

  size_t size() const { return bf16 ? 2 : 4; }
  template <class F>
  // f(index in [B, heads, tokens, D], byte offset in the buffer)
  void each(const Layout& layout, F&& f) const {
    int64_t index = 0;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < layout.heads; ++h) {
        for (int64_t t = 0; t < layout.tokens; ++t) {
          const int64_t row = layout.offset + b * layout.batch + t * layout.row + h * layout.head;
          for (int64_t d = 0; d < c.head_dim; ++d) f(index++, (row + d) * size());
        }
      }
    }
  }
  void put(std::vector<uint8_t>& image, const Layout& layout, const std::vector<double>& x) const {
    each(layout, [&](int64_t i, size_t at) {
      const auto value = static_cast<float>(x[i]);
      const uint16_t half = to_bf16(value);
      std::memcpy(&image[at], bf16 ? static_cast<const void*>(&half) : &value, size());
    });
  }
  // Numbers one after another, and back
  std::vector<uint8_t> packed(const std::vector<double>& x) const {
    std::vector<uint8_t> image(x.size() * size());
    for (size_t i = 0; i < x.size(); ++i) {
      const auto value = static_cast<float>(x[i]);
      const uint16_t half = to_bf16(value);
      std::memcpy(&image[i * size()], bf16 ? static_cast<const void*>(&half) : &value, size());
    }
    return image;
  }
  std::vector<double> unpacked(const std::vector<uint8_t>& image) const {
    std::vector<double> x(image.size() / size());
    for (size_t i = 0; i < x.size(); ++i) {
      uint16_t half;
      float value;
      std::memcpy(bf16 ? static_cast<void*>(&half) : &value, &image[i * size()], size());
      x[i] = bf16 ? from_bf16(half) : value;
    }
    return x;
  }
  // Also marks what it takes, so that what remains can be checked to be untouched.
  std::vector<double> take(std::vector<uint8_t>& image, const Layout& layout) const {
    std::vector<double> x(c.batch * layout.heads * layout.tokens * c.head_dim);
    each(layout, [&](int64_t i, size_t at) {
      uint16_t half;
      float value;
      std::memcpy(bf16 ? static_cast<void*>(&half) : &value, &image[at], size());
      x[i] = bf16 ? from_bf16(half) : value;
      std::memset(&image[at], 0xff, size());
    });
    return x;
  }
};

inline std::vector<double> random_values(int64_t count, uint32_t seed, double size, bool bf16) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<double> x(count);
  for (double& value : x) {
    const auto single = static_cast<float>(normal(generator) * size);
    value = bf16 ? from_bf16(to_bf16(single)) : single;
  }
  return x;
}

inline int device_arch() {  // 0 if there is no device
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0) != cudaSuccess) return 0;
  return 10 * major + minor;
}

// The values of `arch` whose kernels this device runs: its own, and those of others that need no more than it
// has. On Hopper all of them: wgmma, mma.sync, and mma.sync within 99 KB of shared memory.
inline std::vector<int> archs_here(bool bf16) {
  const int own = device_arch();
  if (!bf16) return {own};
  const bool large_shared_memory = own == 80 || own == 87 || (own >= 90 && own < 120);
  std::vector<int> archs = {own};
  for (int arch : {80, 86})
    if (arch != own && (arch == 86 || large_shared_memory)) archs.push_back(arch);
  return archs;
}

}  // namespace tessera::test
