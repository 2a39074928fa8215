// Faults that tests plant into a backend: they run before or after its operations.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "train/session/device.h"

namespace tessera::testing {

class Fault final : public OpObserver {
 public:
  using Run = std::function<void(const AnyOp& op, Backend& be, const Launch& on)>;
  Fault(Run before_op, Run after_op) : before_(std::move(before_op)), after_(std::move(after_op)) {}
  void before(const AnyOp& op, Backend& be, const Launch& on) override { run(before_, op, be, on); }
  void after(const AnyOp& op, Backend& be, const Launch& on) override { run(after_, op, be, on); }

 private:
  void run(const Run& fault, const AnyOp& op, Backend& be, const Launch& on) {
    if (!fault || runs_) return;
    runs_ = true;  // its own operations have no fault
    fault(op, be, on);
    runs_ = false;
  }
  Run before_, after_;
  bool runs_ = false;
};

inline std::function<std::unique_ptr<Backend>(const DeviceTraits&)> planted(Fault& fault) {
  return [&fault](const DeviceTraits& device) {
    std::unique_ptr<Backend> be = make_backend(device);
    be->add_observer(fault);
    return be;
  };
}

// The elements of a tensor of any device in fp32, as `change` leaves them. No observer of `be` sees it.
template <class Change>
void change_values(const Tensor& tensor, Backend& be, const Launch& on, const Change& change) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  const Tensor host{values.data(), DType::kF32, tensor.shape, Device::kCpu};
  be.synchronize(on.stream);
  const std::unique_ptr<Backend> unseen = make_backend(be.traits());
  const Launch apart{.workspace = on.workspace, .stream = unseen->stream()};
  unseen->run(Copy{tensor, host}, apart);
  unseen->synchronize(apart.stream);
  change(std::span(values));
  unseen->run(Copy{host, tensor}, apart);
  unseen->synchronize(apart.stream);
}

// Head `head` of attention's output by a hundredth too large
inline void enlarge_head(const AttentionForward& op, int64_t head, Backend& be, const Launch& on) {
  const Tensor& y = op.y.tensor;  // [B, T, H, D]
  change_values(y, be, on, [&](std::span<float> values) {
    const int64_t H = y.shape[2], D = y.shape[3];
    for (int64_t n = head; n < std::ssize(values) / D; n += H)
      for (int64_t d = 0; d < D; ++d) values[static_cast<size_t>(n * D + d)] *= 1.01f;
  });
}

// Head 1 of the second block, in flash alone
inline Fault::Run wrong_head_of_second_block() {
  return [calls = int64_t{0}](const AnyOp& op, Backend& be, const Launch& on) mutable {
    if (std::holds_alternative<const EmbeddingForward*>(op)) calls = 0;
    const auto* forward = std::get_if<const AttentionForward*>(&op);
    if (forward && (*forward)->plan.kind == AttentionKind::kFlash && calls++ == 1)
      enlarge_head(**forward, 1, be, on);
  };
}

// An element of what the second norm of a block writes in the forward of a step's first micro-batch: an input
// of its MLP
inline Fault::Run in_second_norm(int64_t block, int64_t element, float value) {
  return [=, norms = int64_t{0}](const AnyOp& op, Backend& be, const Launch& on) mutable {
    const auto* norm = std::get_if<const LayerNormForward*>(&op);
    const OpPlace& at = be.place();
    if (!norm || at.block != block || at.backward || at.micro_batch != 0 || ++norms % 2 == 1) return;
    change_values((*norm)->y, be, on, [&](std::span<float> y) { y[static_cast<size_t>(element)] = value; });
  };
}

// The tables' gradients of the second micro-batch of a step count twice.
inline Fault::Run second_micro_batch_twice() {
  return [micro_steps = int64_t{0}](const AnyOp& op, Backend& be, const Launch& on) mutable {
    if (std::holds_alternative<const AdamW*>(op)) micro_steps = 0;
    const auto* backward = std::get_if<const EmbeddingBackward*>(&op);
    if (backward && ++micro_steps == 2) be.run(**backward, on);
  };
}

}  // namespace tessera::testing
