#include "kernels/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "kernels/base/bf16.h"
#include "kernels/base/check.h"
#include "kernels/op_checks.h"

namespace tessera {
namespace {

class CpuBackend final : public Backend {
 public:
  const DeviceTraits& traits() const override { return traits_; }
  void lend_workspace(Tensor) override {}  // these operations need none

  void embedding_forward(const EmbeddingForward& a) override { checked(a), cpu::embedding_forward(a); }
  void embedding_backward(const EmbeddingBackward& a) override { checked(a), cpu::embedding_backward(a); }
  void layernorm_forward(const LayerNormForward& a) override { checked(a), cpu::layernorm_forward(a); }
  void layernorm_backward(const LayerNormBackward& a) override { checked(a), cpu::layernorm_backward(a); }
  void linear_forward(const LinearForward& a) override { checked(a), cpu::linear_forward(a); }
  void linear_backward(const LinearBackward& a) override { checked(a), cpu::linear_backward(a); }
  void cross_entropy(const CrossEntropy& a) override { checked(a), cpu::cross_entropy(a); }
  void global_norm(const GlobalNorm& a) override { checked(a), cpu::global_norm(a); }
  void adamw(const AdamW& a) override { checked(a), cpu::adamw(a); }

  void attention_forward(const AttentionForwardOp& a) override {
    checked(a);
    a.plan.kind == AttentionKind::kNaive ? cpu::naive_attention_forward(a) : cpu::flash_attention_forward(a);
  }
  void attention_backward(const AttentionBackwardOp& a) override {
    checked(a);
    a.plan.kind == AttentionKind::kNaive ? cpu::naive_attention_backward(a)
                                         : cpu::flash_attention_backward(a);
  }

  void fill_zero(Tensor tensor) override {
    check(tensor.device == Device::kCpu, "fill_zero: wants a tensor on cpu, found {}", tensor.to_string());
    const int64_t bytes = static_cast<int64_t>(tensor.bytes());
    constexpr int64_t kChunk =
        1 << 20;  // bytes a task clears: one core alone does not reach the memory's bandwidth
#pragma omp parallel for
    for (int64_t first = 0; first < bytes; first += kChunk)
      std::memset(tensor.as<char>() + first, 0, std::min(kChunk, bytes - first));
  }

  void copy(Tensor from, Tensor to) override {
    check(from.device == Device::kCpu && to.device == Device::kCpu && from.numel() == to.numel(),
          "copy: wants two tensors on cpu with equal element counts, found {} and {}", from.to_string(),
          to.to_string());
    const int64_t count = from.numel();
    if (from.dtype == to.dtype) {
      std::memcpy(to.data, from.data, from.bytes());
    } else if (from.dtype == DType::kF32 && to.dtype == DType::kBF16) {
      for (int64_t i = 0; i < count; ++i) to.as<uint16_t>()[i] = bf16_from_float(from.as<float>()[i]);
    } else if (from.dtype == DType::kBF16 && to.dtype == DType::kF32) {
      for (int64_t i = 0; i < count; ++i) to.as<float>()[i] = float_from_bf16(from.as<uint16_t>()[i]);
    } else {
      fail("copy: cannot convert {} into {}", from.to_string(), to.to_string());
    }
  }

  void synchronize() override {}

 private:
  template <class Op>
  static void checked(const Op& a) {
    check_op(a, Device::kCpu);
  }
  DeviceTraits traits_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace tessera
