// Device buffers and layouts for tests of attention.h. Outputs start as NaN, buffers have guard bytes.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/attention/attention.h"
#include "tests/cuda/attention_reference.h"

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
    std::vector<uint8_t> all(bytes_ + 2 * kGuard);
    cuda_ok(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < kGuard; ++i) {
      if (all[i] != 0xff || all[all.size() - 1 - i] != 0xff) {
        ADD_FAILURE() << "a guard byte was overwritten, " << i << " from the edge";
        break;
      }
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }

 private:
  static constexpr size_t kGuard = 1024;
  uint8_t* memory_ = nullptr;
  size_t bytes_;
};

// Where element (b, t, h, 0) of a tensor is, in elements from the start of its buffer
struct Layout {
  int64_t offset, batch, row, head;
};

// [B, T, 3, H, D], or tensors of their own with gaps between rows
enum class Packing { kPackedQkv, kSeparate };

// Q, K, V in one buffer and O in another; gradients alike
struct Layouts {
  Layout q, k, v, out;
  size_t qkv_elements, out_elements;

  Layouts(const AttentionCase& c, Packing packing) {
    const int64_t hd = c.heads * c.head_dim, t = c.tokens;
    if (packing == Packing::kPackedQkv) {
      q = {0, t * 3 * hd, 3 * hd, c.head_dim};
      out = {0, t * hd, hd, c.head_dim};
      k = v = q;
      k.offset = hd, v.offset = 2 * hd;
      qkv_elements = c.batch * t * 3 * hd, out_elements = c.batch * t * hd;
    } else {  // heads outside tokens, 16 unused elements a row, and K and V with strides of their own
      const auto make = [&](int64_t offset, int64_t gap) {
        const int64_t row = c.head_dim + gap;
        return Layout{offset, c.heads * t * row, row, t * row};
      };
      q = make(0, 16);
      k = make(c.rows() * (c.head_dim + 16), 8);
      v = make(k.offset + c.rows() * (c.head_dim + 8), 24);
      out = make(0, 32);
      qkv_elements = v.offset + c.rows() * (c.head_dim + 24), out_elements = c.rows() * (c.head_dim + 32);
    }
  }
};

// Moves [B, H, T, D] doubles into and out of a host image of a buffer
struct Elements {
  const AttentionCase& c;
  bool bf16;

  size_t size() const { return bf16 ? 2 : 4; }
  template <class F>
  void each(const Layout& layout, F&& f) const {  // f(index in [B, H, T, D], byte offset in the buffer)
    int64_t index = 0;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        for (int64_t t = 0; t < c.tokens; ++t) {
          for (int64_t d = 0; d < c.head_dim; ++d) {
            f(index++, (layout.offset + b * layout.batch + t * layout.row + h * layout.head + d) * size());
          }
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
  // Also marks what it takes, so that what remains can be checked to be untouched.
  std::vector<double> take(std::vector<uint8_t>& image, const Layout& layout) const {
    std::vector<double> x(c.rows() * c.head_dim);
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

}  // namespace tessera::test
