// A backend that does nothing: walking a step with it over Arena::plan() gives the step's memory, without the
// device.
#include "kernels/backend.h"

namespace tessera {
namespace {

class PlanBackend final : public Backend {
 public:
  explicit PlanBackend(const DeviceTraits& traits) : traits_(traits) {}
  const DeviceTraits& traits() const override { return traits_; }
  void lend_workspace(Tensor) override {}
  void embedding_forward(const EmbeddingForward&) override {}
  void embedding_backward(const EmbeddingBackward&) override {}
  void layernorm_forward(const LayerNormForward&) override {}
  void layernorm_backward(const LayerNormBackward&) override {}
  void linear_forward(const LinearForward&) override {}
  void linear_backward(const LinearBackward&) override {}
  void attention_forward(const AttentionForwardOp&) override {}
  void attention_backward(const AttentionBackwardOp&) override {}
  void cross_entropy(const CrossEntropy&) override {}
  void global_norm(const GlobalNorm&) override {}
  void adamw(const AdamW&) override {}
  void fill_zero(Tensor) override {}
  void copy(Tensor, Tensor) override {}
  void synchronize() override {}

 private:
  DeviceTraits traits_;
};

}  // namespace

std::unique_ptr<Backend> make_plan_backend(const DeviceTraits& traits) {
  return std::make_unique<PlanBackend>(traits);
}

}  // namespace tessera
