#include "model/head.h"

#include <algorithm>

#include "model/stages.h"

namespace tessera {
namespace {

Norm final_norm(const Model& model, const Saved& saved) {
  return {.kind = model.config.norm,
          .epsilon = model.config.norm_epsilon,
          .weights = model.params.norm,
          .saved = saved.norm,
          .x = saved.block_input(saved.blocks.size())};
}

// Rows whose logits are computed at a time
int64_t rows_of_logits(const Model& model) {
  const int64_t N = model.attention.rows();
  return model.classifier_chunk > 0 ? std::min(model.classifier_chunk, N) : N;
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
  Tensor d;       // memory like x, where the pass has gradients
  Tensor targets, losses, gradient_scale;
  Tensor dweight;  // none: the classifier is frozen, or the pass has no gradients
  bool accumulate;
};

void fused_head(Arena& arena, const Pass& pass, const Rows& rows) {
  Arena::Scope scope(arena);
  const Tensor &e = rows.logits, &weight = pass.model.params.classifier();
  const int64_t N = rows.x.shape[0];
  const auto take = [&](const char* name, const Shape& shape) {
    return arena.alloc(MemoryTag::kActivations, name, DType::kF32, shape);
  };
  const int64_t parts = (e.shape[1] + HeadLoss::kSumColumns - 1) / HeadLoss::kSumColumns;
  const Tensor factors = take("factors of the loss", {2, N}), sums = take("sums of exponentials", {parts, N});
  pass.stream.run(HeadLoss{.x = rows.x,
                           .weight = weight,
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
                                 .weight = weight,
                                 .dx = rows.d,
                                 .dweight = rows.dweight,
                                 .accumulate = rows.accumulate});
  pass.stream.run(HeadGradient{.x = rows.x,
                               .product = rows.d,
                               .targets = rows.targets,
                               .factors = factors,
                               .weight = weight,
                               .dweight = rows.dweight});
}

void plain_head(const Pass& pass, const Rows& rows, const Fp8Matrix& fp8_x) {
  const Model& model = pass.model;
  const Fp8Linear& fp8 = model.fp8_of_head();
  logits_forward(pass.stream, {.model = model, .rows = rows.x, .logits = rows.logits, .fp8_rows = fp8_x});
  // In FP8 they take the place of x in FP8, which nothing reads any more.
  const Fp8Output dy = pass.grads ? fp8.dy_output(rows.logits) : Fp8Output{};
  pass.stream.run(CrossEntropy{.logits = rows.logits,
                               .targets = rows.targets,
                               .losses = rows.losses,
                               .vocab_size = model.config.vocab_size,
                               .want_gradient = pass.grads != nullptr,
                               .gradient_scale = rows.gradient_scale,
                               .fp8_dlogits = dy});
  if (!pass.grads) return;
  LinearBackward gemm{.dy = rows.logits,
                      .x = rows.x,
                      .weight = model.params.classifier(),
                      .dx = rows.x,
                      .dweight = rows.dweight,
                      .fp8_dy = dy.y,
                      .accumulate = rows.accumulate};
  quantise_operands(pass.stream, fp8, gemm);
  pass.stream.run(gemm);
}

}  // namespace

void final_norm_forward(const Pass& pass, const Saved& saved) {
  norm_forward(pass.stream, final_norm(pass.model, saved), logits_x(pass.model, saved.norm.y));
}

void logits_forward(const Stream& stream, const Logits& logits) {
  const Model& model = logits.model;
  LinearForward gemm{
      .x = logits.rows, .weight = model.params.classifier(), .y = logits.logits, .fp8_x = logits.fp8_rows};
  quantise_operands(stream, model.fp8_of_head(), gemm);
  stream.run(gemm);
}

FusedLinear decode_logits(const Model& model, const Saved& saved, const Tensor& logits) {
  FusedLinear linear{
      .x = saved.block_input(saved.blocks.size()), .weight = model.params.classifier(), .y = logits};
  put_norm_in(final_norm(model, saved), linear);
  return linear;
}

void head_losses(Arena& arena, const Pass& pass, const HeadLosses& head) {
  const Model& model = pass.model;
  const Saved& saved = head.saved;
  const Grads* grads = pass.grads;
  const int64_t N = saved.norm.y.shape[0];
  const Tensor dweight = !grads ? Tensor{} : model.config.tied ? grads->token_table : grads->head_weight;
  const bool fused = model.fused_head && dweight && !model.fp8_of_head();
  {
    Arena::Scope scope(arena);
    const int64_t chunk = rows_of_logits(model);
    const Tensor all_logits = arena.alloc(MemoryTag::kActivations, "logits", saved.norm.y.dtype,
                                          {chunk, model.config.padded_vocab()});
    for (int64_t first = 0; first < N; first += chunk) {
      const int64_t count = std::min(chunk, N - first);
      const Rows rows{.x = saved.norm.y.rows(first, count),
                      .logits = all_logits.rows(0, count),
                      .d = fused ? head.d.rows(first, count) : Tensor{},
                      .targets = pass.batch.targets.view({N}).rows(first, count),
                      .losses = head.losses.rows(first, count),
                      .gradient_scale = head.gradient_scale,
                      .dweight = dweight,
                      .accumulate = pass.accumulate || first > 0};
      fused ? fused_head(arena, pass, rows) : plain_head(pass, rows, logits_x(model, saved.norm.y).y);
    }
  }
  if (!grads) return;
  const Handover below = below_final_norm(pass);
  norm_backward(pass.stream, final_norm(model, saved),
                {.gradients = grads->norm,
                 .dx = head.d,
                 .dx_sum = below.bias,
                 .fp8_dx = below.dy(head.d),
                 .accumulate = pass.accumulate});
}

}  // namespace tessera
