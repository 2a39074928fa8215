#include "train/bench/timed_backend.h"

#include <chrono>

namespace tessera {
namespace {

class TimedBackend final : public Backend {
 public:
  TimedBackend(Backend& inner, OpTimes& times) : inner_(inner), times_(times) {}
  const DeviceTraits& traits() const override { return inner_.traits(); }
  void lend_workspace(Tensor workspace) override { inner_.lend_workspace(workspace); }
  void synchronize() override { inner_.synchronize(); }

  void embedding_forward(const EmbeddingForward& a) override {
    time("embedding forward", [&] { inner_.embedding_forward(a); });
  }
  void embedding_backward(const EmbeddingBackward& a) override {
    time("embedding backward", [&] { inner_.embedding_backward(a); });
  }
  void layernorm_forward(const LayerNormForward& a) override {
    time("layernorm forward", [&] { inner_.layernorm_forward(a); });
  }
  void layernorm_backward(const LayerNormBackward& a) override {
    time("layernorm backward", [&] { inner_.layernorm_backward(a); });
  }
  void linear_forward(const LinearForward& a) override {
    time("linear forward", [&] { inner_.linear_forward(a); });
  }
  void linear_backward(const LinearBackward& a) override {
    time("linear backward", [&] { inner_.linear_backward(a); });
  }
  void attention_forward(const AttentionForwardOp& a) override {
    time("attention forward", [&] { inner_.attention_forward(a); });
  }
  void attention_backward(const AttentionBackwardOp& a) override {
    time("attention backward", [&] { inner_.attention_backward(a); });
  }
  void cross_entropy(const CrossEntropy& a) override {
    time("cross entropy", [&] { inner_.cross_entropy(a); });
  }
  void global_norm(const GlobalNorm& a) override {
    time("gradient norm", [&] { inner_.global_norm(a); });
  }
  void adamw(const AdamW& a) override {
    time("adamw", [&] { inner_.adamw(a); });
  }
  void fill_zero(Tensor tensor) override {
    time("zero gradients", [&] { inner_.fill_zero(tensor); });
  }
  void copy(Tensor from, Tensor to) override {
    time("copies", [&] { inner_.copy(from, to); });
  }

 private:
  template <class Call>
  void time(const char* op, Call&& call) {
    inner_.synchronize();
    const auto start = std::chrono::steady_clock::now();
    call();
    inner_.synchronize();
    OpTime& entry = times_[op];
    ++entry.calls;
    entry.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Backend& inner_;
  OpTimes& times_;
};

}  // namespace

std::unique_ptr<Backend> make_timed_backend(Backend& inner, OpTimes& times) {
  return std::make_unique<TimedBackend>(inner, times);
}

}  // namespace tessera
