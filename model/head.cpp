#include "model/head.h"

#include <algorithm>

#include "model/context_rows.h"
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

// Divides logits where it costs least: in `y`, the output of the final norm, and in its gradient
void divide_logits(const Pass& pass, const Tensor& y) {
  const double divisor = pass.model.config.logit_divisor;
  drop(pass, {.x = y, .y = y, .dropout = {.factor = static_cast<float>(1 / divisor)}});
}

// Rows whose logits are computed at a time
int64_t rows_of_logits(const Model& model) {
  return rows_at_a_time(model.classifier_chunk, model.attention.rows());
}

// The x of the logits in FP8, written by the final norm; not where the gradient of some logits would
// overwrite the x of the next ones, or the forward of a reference that of the gradients
Fp8Output logits_x(const Model& model, const Tensor& norm) {
  return rows_of_logits(model) < norm.shape[0] || model.config.logit_divisor != 1 || model.loss.weights
             ? Fp8Output{}
             : model.fp8_of_head().x_output(norm);
}

void run_logits(const Stream& stream, const Model& model, LinearForward gemm, const Tensor& saturated = {}) {
  quantise_operands(stream, model.fp8_of_head(), gemm, saturated);
  stream.run(gemm);
}

// The logits of rows, their losses and gradients, one after another
struct SeparateHead {
  HiddenRows of;
  Tensor teacher, teacher_ids, teacher_logits;  // as in LogitRows
  Fp8Matrix fp8_x;
  bool trains;
};
void separate_head(const Pass& pass, const SeparateHead& head) {
  const Model& model = pass.model;
  const HiddenRows& of = head.of;
  const Fp8Linear& fp8 = model.fp8_of_head();
  const Probe* probe = pass.backward_probe;  // a training computes the logits in its backward
  run_logits(pass.stream, model, {.x = of.x, .weight = of.weight, .y = of.logits, .fp8_x = head.fp8_x},
             probe ? probe->saturated_x(fp8) : Tensor{});
  // In FP8 they take the place of x in FP8, which nothing reads any more.
  const Fp8Output dy = head.trains ? fp8.dy_output(of.logits) : Fp8Output{};
  model.loss.run(pass.stream, {.rows = of.rows,
                               .logits = of.logits,
                               .trains = head.trains,
                               .teacher = head.teacher,
                               .teacher_ids = head.teacher_ids,
                               .teacher_logits = head.teacher_logits,
                               .cap = static_cast<float>(model.config.logit_cap),
                               .fp8_gradient = dy});
  if (!head.trains) return;
  LinearBackward gemm{.dy = of.logits,
                      .x = of.x,
                      .weight = of.weight,
                      .dx = of.x,
                      .dweight = of.dweight,
                      .fp8_dy = dy.y,
                      .accumulate = of.accumulate};
  quantise_operands(pass.stream, fp8, gemm, probe ? probe->saturated_dy(fp8) : Tensor{});
  pass.stream.run(gemm);
}

}  // namespace

void final_norm_forward(const Pass& pass, const Saved& saved) {
  pass.stream.enter(OpPlace::kHead, /*backward=*/false);
  const WeightLease<HeadParams> weights = pass.model.lease_head(LeaseFor::kForward);
  norm_forward(pass.stream, final_norm(pass.model, *weights, saved), logits_x(pass.model, saved.norm.y));
  divide_logits(pass, saved.norm.y);
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
  Arena::Scope scope(arena);
  const Tensor row_weights = !gradients           ? Tensor{}
                             : model.loss.weights ? model.loss.weights(arena, pass, saved)
                                                  : pass.batch.weights;
  const Tensor of_teacher =
      gradients && model.loss.teacher_rows ? model.loss.teacher_rows(arena, pass) : Tensor{};
  const WeightLease<HeadParams> weights =
      model.lease_head(gradients ? LeaseFor::kBackward : LeaseFor::kForward);
  pass.stream.enter(OpPlace::kHead, /*backward=*/gradients != nullptr);
  const int64_t N = saved.norm.y.shape[0];
  const Tensor dweight = gradients ? gradients->classifier() : Tensor{};
  // HeadLoss knows no cap.
  const bool fused = model.fused_head && model.loss.run_fused && dweight && !model.fp8_of_head() &&
                     model.config.logit_cap == 0;
  {
    Arena::Scope logits_scope(arena);
    const int64_t chunk = rows_of_logits(model);
    const Tensor all_logits = arena.alloc(MemoryTag::kActivations, "logits", saved.norm.y.dtype,
                                          {chunk, model.config.padded_vocab()});
    const Tensor teacher_logits =
        of_teacher ? arena.alloc(MemoryTag::kActivations, "logits of the teacher", of_teacher.dtype,
                                 {chunk, model.teacher->config.padded_vocab()})
                   : Tensor{};
    for (int64_t first = 0; first < N; first += chunk) {
      const int64_t count = std::min(chunk, N - first);
      const auto part = [&](const Tensor& rows) {
        return gradients && rows ? rows.rows(first, count) : Tensor{};
      };
      const HiddenRows of{.rows = {.targets = pass.batch.targets.view({N}).rows(first, count),
                                   .weights = part(row_weights),
                                   .gradient_scale = head.gradient_scale,
                                   .losses = head.losses.rows(first, count),
                                   .vocab_size = model.config.vocab_size},
                          .x = saved.norm.y.rows(first, count),
                          .weight = weights->classifier(),
                          .dweight = dweight,
                          .logits = all_logits.rows(0, count),
                          .scratch = fused ? head.d.rows(first, count) : Tensor{},
                          .accumulate = pass.accumulate || first > 0};
      const Tensor its_logits = of_teacher ? teacher_logits.rows(0, count) : Tensor{};
      if (of_teacher)
        logits_forward(
            pass.stream,
            {.model = *model.teacher, .rows = of_teacher.rows(first, count), .logits = its_logits});
      if (fused) {
        model.loss.run_fused(arena, pass.stream, of);
      } else {
        separate_head(pass, {.of = of,
                             .teacher = its_logits,
                             .teacher_ids = part(pass.batch.teacher_ids),
                             .teacher_logits = part(pass.batch.teacher_logits),
                             .fp8_x = logits_x(model, saved.norm.y).y,
                             .trains = gradients != nullptr});
      }
    }
  }
  if (!gradients) return;
  if (model.loss.pairs) take_own_rows(pass, pass.batch.figures.rows(0, 1), head.losses);
  divide_logits(pass, saved.norm.y);
  const Handover below = to_block_below(pass, saved.blocks.size(), head.below);
  norm_backward(pass.stream, final_norm(model, *weights, saved),
                {.gradients = gradients->norm,
                 .dx = head.d,
                 .dx_sum = below.bias,
                 .fp8_dx = below.dy(head.d),
                 .accumulate = pass.accumulate});
}

}  // namespace tessera
