#include "model/losses/loss_rule.h"

namespace tessera {
namespace {

void run(const Stream& stream, const LogitRows& of, const CrossEntropyExtras& extras) {
  const LossRows& rows = of.rows;
  stream.run(CrossEntropy{.logits = of.logits,
                          .targets = rows.targets,
                          .losses = rows.losses,
                          .vocab_size = rows.vocab_size,
                          .want_gradient = of.trains,
                          .cap = of.cap,
                          .gradient_scale = rows.gradient_scale,
                          .weights = rows.weights,
                          .fp8_dlogits = of.fp8_gradient,
                          .z_loss = static_cast<float>(extras.z_loss),
                          .label_smoothing = static_cast<float>(extras.label_smoothing)});
}

void run_fused(Arena& arena, const Stream& stream, const HiddenRows& of, const CrossEntropyExtras& extras) {
  Arena::Scope scope(arena);
  const LossRows& rows = of.rows;
  const Tensor& e = of.logits;
  const int64_t N = of.x.shape[0];
  const auto take = [&](const char* name, const Shape& shape) {
    return arena.alloc(MemoryTag::kActivations, name, DType::kF32, shape);
  };
  const int64_t parts = (e.shape[1] + HeadLoss::kSumColumns - 1) / HeadLoss::kSumColumns;
  const Tensor factors = take("factors of the loss", {2, N}), sums = take("sums of exponentials", {parts, N});
  stream.run(HeadLoss{.x = of.x,
                      .weight = of.weight,
                      .targets = rows.targets,
                      .gradient_scale = rows.gradient_scale,
                      .weights = rows.weights,
                      .z_loss = static_cast<float>(extras.z_loss),
                      .vocab_size = rows.vocab_size,
                      .e = e,
                      .losses = rows.losses,
                      .scaled_x = of.scratch,
                      .factors = factors,
                      .sums = sums});
  stream.run(LinearBackward{.dy = e,
                            .x = of.scratch,
                            .weight = of.weight,
                            .dx = of.scratch,
                            .dweight = of.dweight,
                            .accumulate = of.accumulate});
  stream.run(HeadGradient{.x = of.x,
                          .product = of.scratch,
                          .targets = rows.targets,
                          .factors = factors,
                          .weight = of.weight,
                          .dweight = of.dweight});
}

}  // namespace

// Label smoothing adds the same number to the gradient of every logit: HeadLoss has no room for that.
LossRule cross_entropy(const CrossEntropyExtras& extras) {
  LossRule rule{.name = "cross_entropy",
                .run = [extras](const Stream& stream, const LogitRows& rows) { run(stream, rows, extras); }};
  if (extras.label_smoothing == 0)
    rule.run_fused = [extras](Arena& arena, const Stream& stream, const HiddenRows& rows) {
      run_fused(arena, stream, rows, extras);
    };
  return rule;
}

}  // namespace tessera
