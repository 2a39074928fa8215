#include "model/head.h"

#include <algorithm>

#include "model/stages.h"

namespace tessera {
namespace {

Norm final_norm(const Model& model, const HeadParams& weights, const Saved& saved) {
  return {.kind = model.config.norm,
          .epsilon = model.config.norm_epsilon,
          .offset = model.config.norm_offset(),
          .weights = weights.norm,
          .saved = saved.norm,
          .x = saved.block_input(saved.blocks.size())};
}

// Rows whose logits are computed at a time
int64_t rows_of_logits(const Model& model) {
  return rows_at_a_time(model.classifier_chunk, model.attention.rows());
}

// The x of the logits in FP8, written by the final norm; not where the gradient of some logits would
// overwrite the x of the next ones
Fp8Output logits_x(const Model& model, const Tensor& norm) {
  return rows_of_logits(model) < norm.shape[0] ? Fp8Output{} : model.fp8_of_head().x_output(norm);
}

// Some of the rows
struct Rows {
  Tensor x;       // of the final norm: its place gets its gradient
  Tensor logits;  // memory for them
  Tensor weight;  // the classifier
  Tensor d;       // memory like x, of a fused head
  Tensor targets, losses, gradient_scale;
  Tensor dweight;  // none: the classifier is frozen, or the head is not trained
  bool trains, accumulate;
};

void fused_head(Arena& arena, const Pass& pass, const Rows& rows) {
  Arena::Scope scope(arena);
  const Tensor& e = rows.logits;
  const int64_t N = rows.x.shape[0];
  const auto take = [&](const char* name, const Shape& shape) {
    return arena.alloc(MemoryTag::kActivations, name, DType::kF32, shape);
  };
  const int64_t parts = (e.shape[1] + HeadLoss::kSumColumns - 1) / HeadLoss::kSumColumns;
  const Tensor factors = take("factors of the loss", {2, N}), sums = take("sums of exponentials", {parts, N});
  pass.stream.run(HeadLoss{.x = rows.x,
                           .weight = rows.weight,
                           .targets = rows.targets,
                           .gradient_scale = rows.gradient_scale,
                           .vocab_size = pass.model.config.vocab_size,
                           .e = e,
                           .losses = rows.losses,
                           .scaled_x = rows.d,
                           .factors = factors,
                           .sums = sums});
  pass.stream.run(LinearBackward{.dy = e,
                                 .x = rows.d,
                                 .weight = rows.weight,
                                 .dx = rows.d,
                                 .dweight = rows.dweight,
                                 .accumulate = rows.accumulate});
  pass.stream.run(HeadGradient{.x = rows.x,
                               .product = rows.d,
                               .targets = rows.targets,
                               .factors = factors,
                               .weight = rows.weight,
                               .dweight = rows.dweight});
}

void run_logits(const Stream& stream, const Model& model, LinearForward gemm, const Tensor& saturated = {}) {
  quantise_operands(stream, model.fp8_of_head(), gemm, saturated);
  stream.run(gemm);
}

void plain_head(const Pass& pass, const Rows& rows, const Fp8Matrix& fp8_x) {
  const Model& model = pass.model;
  const Fp8Linear& fp8 = model.fp8_of_head();
  const Probe* probe = pass.backward_probe;  // a training computes the logits in its backward
  run_logits(pass.stream, model, {.x = rows.x, .weight = rows.weight, .y = rows.logits, .fp8_x = fp8_x},
             probe ? probe->saturated_x(fp8) : Tensor{});
  // In FP8 they take the place of x in FP8, which nothing reads any more.
  const Fp8Output dy = rows.trains ? fp8.dy_output(rows.logits) : Fp8Output{};
  pass.stream.run(CrossEntropy{.logits = rows.logits,
                               .targets = rows.targets,
                               .losses = rows.losses,
                               .vocab_size = model.config.vocab_size,
                               .want_gradient = rows.trains,
                               .cap = static_cast<float>(model.config.logit_cap),
                               .gradient_scale = rows.gradient_scale,
                               .fp8_dlogits = dy});
  if (!rows.trains) return;
  LinearBackward gemm{.dy = rows.logits,
                      .x = rows.x,
                      .weight = rows.weight,
                      .dx = rows.x,
                      .dweight = rows.dweight,
                      .fp8_dy = dy.y,
                      .accumulate = rows.accumulate};
  quantise_operands(pass.stream, fp8, gemm, probe ? probe->saturated_dy(fp8) : Tensor{});
  pass.stream.run(gemm);
}

}  // namespace

void final_norm_forward(const Pass& pass, const Saved& saved) {
  pass.stream.enter(OpPlace::kHead, /*backward=*/false);
  const WeightLease<HeadParams> weights = pass.model.lease_head(LeaseFor::kForward);
  norm_forward(pass.stream, final_norm(pass.model, *weights, saved), logits_x(pass.model, saved.norm.y));
}

void logits_forward(const Stream& stream, const Logits& logits) {
  const WeightLease<HeadParams> weights = logits.model.lease_head(LeaseFor::kInference);
  run_logits(stream, logits.model, {.x = logits.rows, .weight = weights->classifier(), .y = logits.logits});
  cap_logits(stream, logits.model.config, logits.logits);
}

void cap_logits(const Stream& stream, const ModelConfig& config, const Tensor& logits) {
  if (config.logit_cap > 0)
    stream.run(CapLogits{.logits = logits, .cap = static_cast<float>(config.logit_cap)});
}

FusedLinear decode_logits(const DecodeLogits& step) {
  const Saved& saved = step.saved;
  FusedLinear linear{
      .x = saved.block_input(saved.blocks.size()), .weight = step.weights.classifier(), .y = step.logits};
  put_norm_in(final_norm(step.model, step.weights, saved), linear);
  return linear;
}

void head_losses(Arena& arena, const Pass& pass, const HeadLosses& head) {
  const Model& model = pass.model;
  const Saved& saved = head.saved;
  const HeadParams* gradients = head.gradients;
  const WeightLease<HeadParams> weights =
      model.lease_head(gradients ? LeaseFor::kBackward : LeaseFor::kForward);
  pass.stream.enter(OpPlace::kHead, /*backward=*/gradients != nullptr);
  const int64_t N = saved.norm.y.shape[0];
  const Tensor dweight = gradients ? gradients->classifier() : Tensor{};
  // HeadLoss knows no cap.
  const bool fused = model.fused_head && dweight && !model.fp8_of_head() && model.config.logit_cap == 0;
  {
    Arena::Scope scope(arena);
    const int64_t chunk = rows_of_logits(model);
    const Tensor all_logits = arena.alloc(MemoryTag::kActivations, "logits", saved.norm.y.dtype,
                                          {chunk, model.config.padded_vocab()});
    for (int64_t first = 0; first < N; first += chunk) {
      const int64_t count = std::min(chunk, N - first);
      const Rows rows{.x = saved.norm.y.rows(first, count),
                      .logits = all_logits.rows(0, count),
                      .weight = weights->classifier(),
                      .d = fused ? head.d.rows(first, count) : Tensor{},
                      .targets = pass.batch.targets.view({N}).rows(first, count),
                      .losses = head.losses.rows(first, count),
                      .gradient_scale = head.gradient_scale,
                      .dweight = dweight,
                      .trains = gradients != nullptr,
                      .accumulate = pass.accumulate || first > 0};
      fused ? fused_head(arena, pass, rows) : plain_head(pass, rows, logits_x(model, saved.norm.y).y);
    }
  }
  if (!gradients) return;
  const Handover below = to_block_below(pass, saved.blocks.size(), head.below);
  norm_backward(pass.stream, final_norm(model, *weights, saved),
                {.gradients = gradients->norm,
                 .dx = head.d,
                 .dx_sum = below.bias,
                 .fp8_dx = below.dy(head.d),
                 .accumulate = pass.accumulate});
}

}  // namespace tessera
