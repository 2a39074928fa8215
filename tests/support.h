// What several test programs need: tensors with random or poisoned contents, and comparisons.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "kernels/base/random.h"
#include "kernels/stream.h"

namespace tessera::testing {

inline std::span<float> floats(const Tensor& t) { return {t.as<float>(), static_cast<size_t>(t.numel())}; }

// fp32 (or int32) tensors on the host that live as long as this object.
class HostTensors {
 public:
  Tensor empty(Shape shape, DType dtype = DType::kF32) {
    return arena_.alloc(MemoryTag::kData, "test", dtype, shape);
  }
  // Every byte 0xFF: NaN, so that an output that is not written, or an input that must not be read, shows.
  Tensor poisoned(Shape shape) {
    const Tensor t = empty(shape);
    std::memset(t.data, 0xFF, t.bytes());
    return t;
  }
  Tensor zeros(Shape shape) {
    const Tensor t = empty(shape);
    std::memset(t.data, 0, t.bytes());
    return t;
  }
  Tensor normal(Shape shape, double deviation = 1, double mean = 0) {
    const Tensor t = empty(shape);
    const Philox random(20240607, stream_++);
    for (size_t i = 0; i < floats(t).size(); ++i)
      floats(t)[i] = static_cast<float>(mean + deviation * random.normal(i));
    return t;
  }
  Tensor tokens(Shape shape, int64_t below) {
    const Tensor t = empty(shape, DType::kI32);
    const Philox random(20240607, stream_++);
    for (int64_t i = 0; i < t.numel(); ++i)
      t.as<int32_t>()[i] = static_cast<int32_t>(random.bits(i)[0] % static_cast<uint32_t>(below));
    return t;
  }
  Tensor scalar(float value) {  // [1]
    const Tensor t = empty({1});
    floats(t)[0] = value;
    return t;
  }
  Tensor copy_of(const Tensor& other) {
    const Tensor t = empty(other.shape, other.dtype);
    std::memcpy(t.data, other.data, other.bytes());
    return t;
  }

 private:
  Arena arena_ = Arena::host();
  uint64_t stream_ = 0;
};

// A stream on the CPU with a backend and a workspace of its own, whose bytes begin as NaN.
struct CpuBackendAndWorkspace {
  HostTensors own_tensors;
  std::unique_ptr<Backend> own_backend = make_cpu_backend();
  Tensor own_workspace = own_tensors.poisoned({(workspace_bytes(Device::kCpu, 1024, 1024, 4096) + 3) / 4});
};
class CpuStream : private CpuBackendAndWorkspace, public Stream {
 public:
  CpuStream() : Stream(*own_backend, own_workspace) {}
};

// The largest |a - b| over the largest |b|. NaN anywhere gives NaN, which fails every comparison.
inline double relative_error(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.numel(), b.numel());
  double worst = 0, largest = 1e-30;
  for (size_t i = 0; i < floats(b).size(); ++i) {
    const double difference = std::abs(static_cast<double>(floats(a)[i]) - floats(b)[i]);
    if (!(difference <= worst)) worst = difference;
    largest = std::max(largest, std::abs(static_cast<double>(floats(b)[i])));
    if (std::isnan(worst)) return worst;
  }
  return worst / largest;
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (size_t i = 0; i < floats(a).size(); ++i) sum += static_cast<double>(floats(a)[i]) * floats(b)[i];
  return sum;
}

// Compares `gradient` with central differences of `loss` in some coordinates of `x`.
inline void expect_gradient(const Tensor& x, const Tensor& gradient, const std::function<double()>& loss,
                            double tolerance = 2e-3, double step = 1e-2) {
  ASSERT_EQ(x.numel(), gradient.numel());
  double largest = 1e-3;
  for (const float g : floats(gradient)) largest = std::max(largest, std::abs(static_cast<double>(g)));
  const size_t count = floats(x).size(), stride = std::max<size_t>(1, count / 23);
  for (size_t i = 0; i < count; i += stride) {
    float& value = floats(x)[i];
    const float before = value;
    const float above = before + static_cast<float>(step), below = before - static_cast<float>(step);
    value = above;
    const double up = loss();
    value = below;
    const double down = loss();
    value = before;
    const double numeric = (up - down) / (static_cast<double>(above) - below);
    EXPECT_NEAR(floats(gradient)[i], numeric, tolerance * largest) << "coordinate " << i << " of " << count;
  }
}

}  // namespace tessera::testing
