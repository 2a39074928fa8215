// Twins: a tensor on the CPU in fp32 and the same on CUDA in the dtype under test, so that run_on_both() runs
// one operation on both and the results can be compared. Device memory is allocated with guards before and
// after.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "kernels/base/bf16.h"
#include "kernels/base/check.h"
#include "kernels/stream.h"
#include "tests/tolerances.h"

namespace tessera {

inline constexpr DType kReal[] = {DType::kBF16, DType::kF32};

struct Twin {
  Tensor cpu, cuda;
};

struct OnCpu {
  Tensor operator()(const Twin& twin) const { return twin.cpu; }
  template <class T>
  const T& operator()(const T& on_cpu, const T&) const {
    return on_cpu;
  }
};
struct OnCuda {
  Tensor operator()(const Twin& twin) const { return twin.cuda; }
  template <class T>
  const T& operator()(const T&, const T& on_cuda) const {
    return on_cuda;
  }
};

class CudaTest : public ::testing::Test {
 protected:
  static constexpr int64_t kGuardBytes = 256, kMaxRows = 1024, kMaxChannels = 4096,
                           kMaxFeatures = 4 * kMaxChannels;
  static constexpr unsigned char kPoison = 0xff;  // in every byte: NaN in fp32 and bf16, -1 in int32

  void SetUp() override {
    DeviceTraits traits;
    std::string why_not;
    if (!find_cuda_device(traits, why_not)) GTEST_SKIP() << "no CUDA device: " << why_not;
    host_ = std::make_unique<Arena>(Arena::host());
    device_ = std::make_unique<Arena>(Arena::cuda());
    cpu_ = make_cpu_backend();
    cuda_ = make_cuda_backend();
    workspace_ = device_->alloc(MemoryTag::kWorkspace, "workspace", DType::kF32,
                                {workspace_bytes(Device::kCuda, kMaxRows, kMaxChannels, kMaxFeatures) / 4});
    host_workspace_ = host_->alloc(MemoryTag::kWorkspace, "workspace", DType::kF32,
                                   {workspace_bytes(Device::kCpu, kMaxRows, kMaxChannels, kMaxFeatures) / 4});
    on_cpu_.emplace(*cpu_, host_workspace_);
    on_cuda_.emplace(*cuda_, workspace_);
  }

  const Stream& cpu() { return *on_cpu_; }
  const Stream& cuda() { return *on_cuda_; }
  const DeviceTraits& traits() const { return cuda_->traits(); }

  // Uninitialised on both sides: NaN, so that an element that is read too early or never written shows.
  Twin output(DType dtype, Shape shape) {
    Twin twin{host_->alloc(MemoryTag::kData, "twin", dtype == DType::kI32 ? dtype : DType::kF32, shape),
              guarded(dtype, shape)};
    std::memset(twin.cpu.data, kPoison, twin.cpu.bytes());
    return twin;
  }

  // Normally distributed values that `dtype` can hold.
  Twin input(DType dtype, Shape shape, float spread = 1, float centre = 0) {
    std::normal_distribution<float> normal(centre, spread);
    return with_values(dtype, shape, [&](int64_t) { return normal(random_); });
  }

  Twin with_values(DType dtype, Shape shape, const std::function<float(int64_t)>& value_at) {
    Twin twin = output(dtype, shape);
    for (int64_t i = 0; i < twin.cpu.numel(); ++i) {
      const float value = value_at(i);
      twin.cpu.as<float>()[i] = dtype == DType::kBF16 ? float_from_bf16(bf16_from_float(value)) : value;
    }
    cuda().run(Copy{twin.cpu, twin.cuda});
    return twin;
  }

  Twin indices(Shape shape, const std::function<int32_t(int64_t)>& index_at) {
    Twin twin = output(DType::kI32, shape);
    for (int64_t i = 0; i < twin.cpu.numel(); ++i) twin.cpu.as<int32_t>()[i] = index_at(i);
    cuda().run(Copy{twin.cpu, twin.cuda});
    return twin;
  }
  Twin random_indices(Shape shape, int64_t below) {
    std::uniform_int_distribution<int32_t> uniform(0, static_cast<int32_t>(below) - 1);
    return indices(shape, [&](int64_t) { return uniform(random_); });
  }

  // Places in documents of 1 to `longest` tokens in sequences of T tokens, [B, T]
  Twin random_positions(int64_t B, int64_t T, int64_t longest) {
    std::uniform_int_distribution<int64_t> uniform(1, longest);
    int64_t begin = 0, end = 0;
    return indices({B, T}, [&](int64_t i) {
      const int64_t t = i % T;
      if (t == 0 || t == end) begin = t, end = std::min(T, t + uniform(random_));
      return static_cast<int32_t>(t - begin);
    });
  }

  // Runs an operation on both devices: once on the CPU, twice on CUDA. `make` gives its struct for the device
  // that `on` stands for: on(twin) is the tensor there, on(a, b) is `a` on the CPU and `b` on CUDA. `results`
  // are the twins that it writes.
  template <class MakeOp>
  void run_on_both(const std::vector<Twin>& results, const MakeOp& make) {
    cpu().run(make(OnCpu{}));
    run_twice(results, [&] { cuda().run(make(OnCuda{})); });
  }

  // Runs an operation on CUDA twice from the same state, over a poisoned workspace, and wants the same bits
  // in `results`.
  void run_twice(const std::vector<Twin>& results, const std::function<void()>& operation) {
    std::vector<std::vector<char>> before, first;
    for (const Twin& twin : results) before.push_back(bytes_of(twin.cuda));
    for (int turn = 0; turn < 2; ++turn) {
      ASSERT_EQ(cudaMemset(workspace_.data, kPoison, workspace_.bytes()), cudaSuccess);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      operation();
      cuda().synchronize();
      for (size_t i = 0; i < results.size(); ++i) {
        if (turn == 0) {
          first.push_back(bytes_of(results[i].cuda));
          ASSERT_EQ(cudaMemcpy(results[i].cuda.data, before[i].data(), before[i].size(), cudaMemcpyDefault),
                    cudaSuccess);
        } else {
          EXPECT_EQ(std::memcmp(first[i].data(), bytes_of(results[i].cuda).data(), first[i].size()), 0)
              << "result " << i << " has other bits the second time";
        }
      }
    }
    expect_guards_whole();
  }

  void expect_same(const Twin& twin, const char* what, double slack = 1) {
    const std::vector<float> got = floats_of(twin.cuda);
    const float* want = twin.cpu.as<float>();
    double squares = 0;
    for (size_t i = 0; i < got.size(); ++i)
      if (std::isfinite(want[i])) squares += static_cast<double>(want[i]) * want[i];
    const double rms = std::sqrt(squares / static_cast<double>(std::max<size_t>(1, got.size())));
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isinf(want[i]) && got[i] == want[i]) continue;  // the log-sum-exp of a row that sees nothing
      const double allowed = slack * tolerance::of_operation(twin.cuda.dtype) * (std::abs(want[i]) + rms);
      ASSERT_TRUE(std::abs(static_cast<double>(got[i]) - want[i]) <= allowed)
          << what << "[" << i << "] of " << twin.cuda.to_string() << ": " << got[i] << ", wanted " << want[i]
          << " +- " << allowed;
    }
  }

  // The error's norm over the reference's: for long chains of roundings, whose largest element says little.
  void expect_same_norm(const Twin& twin, const char* what, double slack = 1) {
    const std::vector<float> got = floats_of(twin.cuda);
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = twin.cpu.as<float>()[i];
      error += (got[i] - want) * (got[i] - want);
      size += want * want;
    }
    EXPECT_LE(std::sqrt(error), slack * tolerance::of_operation(twin.cuda.dtype) * std::sqrt(size)) << what;
  }

  std::vector<float> floats_of(const Tensor& tensor) {
    std::vector<float> values(tensor.numel());
    cuda().run(Copy{tensor, {values.data(), DType::kF32, tensor.shape, Device::kCpu}});
    return values;
  }

  std::vector<char> bytes_of(const Tensor& tensor) {
    std::vector<char> bytes(tensor.bytes());
    cuda().run(Copy{tensor, {bytes.data(), tensor.dtype, tensor.shape, Device::kCpu}});
    return bytes;
  }

  static std::string message_of(const std::function<void()>& refused) {
    try {
      refused();
    } catch (const Error& error) {
      return error.what();
    }
    return "was not refused";
  }

  std::mt19937 random_{20240611};

 private:
  Tensor guarded(DType dtype, Shape shape) {
    Tensor tensor{nullptr, dtype, shape, Device::kCuda};
    const auto bytes = static_cast<int64_t>(tensor.bytes());
    const int64_t bf16s = (bytes + 1) / 2 + kGuardBytes;  // a guard on each side, in elements of two bytes
    char* base = device_->alloc(MemoryTag::kData, "twin", DType::kBF16, {bf16s}).as<char>();
    EXPECT_EQ(cudaMemset(base, kPoison, bf16s * 2), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the backend's stream does not wait for this one
    tensor.data = base + kGuardBytes;
    guards_.push_back(base);
    guards_.push_back(base + kGuardBytes + bytes);
    return tensor;
  }

  void expect_guards_whole() {
    std::vector<unsigned char> guard(kGuardBytes);
    for (const char* at : guards_) {
      ASSERT_EQ(cudaMemcpy(guard.data(), at, kGuardBytes, cudaMemcpyDefault), cudaSuccess);
      for (unsigned char byte : guard) ASSERT_EQ(byte, kPoison) << "a write outside a tensor";
    }
  }

  std::unique_ptr<Arena> host_, device_;
  std::unique_ptr<Backend> cpu_, cuda_;
  std::optional<Stream> on_cpu_, on_cuda_;
  Tensor host_workspace_, workspace_;
  std::vector<const char*> guards_;
};

}  // namespace tessera
