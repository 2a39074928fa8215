// Tensor: a typed view of memory that it does not own.
//
// Invariants: a Tensor is trivially copyable and owns nothing; its elements are contiguous, with the last
// dimension fastest. A Tensor without a shape (`{}`) means "none" and converts to false. A planned tensor,
// which comes from an arena without memory, has a shape but no data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels/base/words.h"

namespace tessera {

// kU16: bits, with which nothing is computed. kE4M3 and kE5M2 are FP8: kernels/base/fp8.h
enum class DType : uint8_t { kF32, kBF16, kI32, kU16, kE4M3, kE5M2 };
enum class Device : uint8_t { kCpu, kCuda };

constexpr auto words_of(DType) {
  return std::array{Word{"fp32", DType::kF32},   Word{"bf16", DType::kBF16}, Word{"int32", DType::kI32},
                    Word{"uint16", DType::kU16}, Word{"e4m3", DType::kE4M3}, Word{"e5m2", DType::kE5M2}};
}
constexpr auto words_of(Device) { return std::array{Word{"cpu", Device::kCpu}, Word{"cuda", Device::kCuda}}; }

size_t size_of(DType dtype);  // bytes per element

class Shape {
 public:
  static constexpr int kMaxRank = 5;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims);  // fails on more than kMaxRank dimensions or a negative one

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return dims_[i < 0 ? i + rank_ : i]; }  // negative counts from the end
  int64_t numel() const;                                                    // 1 for rank 0
  bool operator==(const Shape&) const = default;
  std::string to_string() const;  // "[4, 1024, 768]"

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Shape shape = {};
  Device device = Device::kCpu;

  explicit operator bool() const { return shape.rank() > 0; }
  int64_t numel() const { return shape.rank() ? shape.numel() : 0; }
  size_t bytes() const { return static_cast<size_t>(numel()) * size_of(dtype); }

  // The elements as T*; the caller guarantees dtype and device (Backend::run checks them).
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  Tensor view(Shape other) const;                   // same elements, other shape; fails unless numel agrees
  Tensor rows(int64_t first, int64_t count) const;  // a slice of the first dimension
  std::string to_string() const;                    // "bf16 [4, 1024, 768] on cuda"
};

}  // namespace tessera
