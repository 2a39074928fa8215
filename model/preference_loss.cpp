#include "model/preference_loss.h"

#include "model/context_rows.h"
#include "model/transformer.h"

namespace tessera {
namespace {

const char* name_of(PreferenceKind kind) {
  switch (kind) {
    case PreferenceKind::kDpo:
      return "dpo";
    case PreferenceKind::kIpo:
      return "ipo";
    case PreferenceKind::kSimpo:
      return "simpo";
    case PreferenceKind::kOrpo:
      return "orpo";
    case PreferenceKind::kKto:
      return "kto";
  }
  return "";
}

// The loss of a pair needs the losses of all its tokens. In a context each rank has some of these tokens. So
// the ranks gather the losses of all tokens, every rank scores all pairs, and keeps the results for its own
// rows (context_rows.h).
int64_t rows_of_all(const Batch& batch) {
  return batch.all_targets ? batch.all_targets.numel() : batch.targets.numel();
}

// The losses of the rows of a pass, by the model and by its reference
struct Scored {
  Tensor losses;     // of all tokens
  Tensor reference;  // of all tokens; none if the rule needs no reference, or if its numbers are stored
};
Scored score(Arena& arena, const Pass& pass, const Saved& saved) {
  const Shape rows{pass.batch.targets.numel()};
  const auto take = [&](const char* name) {
    return arena.alloc(MemoryTag::kActivations, name, DType::kF32, rows);
  };
  Scored found{.losses = take("losses of rows"), .reference = {}};
  if (pass.model.loss.needs_reference) found.reference = take("losses of the reference");
  head_losses(arena, pass, {.saved = saved, .losses = found.losses});
  if (found.reference)
    evaluate_batch(pass.stream, arena,
                   {.model = *pass.model.reference, .batch = pass.batch, .losses = found.reference});
  found.losses = rows_of_all_tokens(arena, pass, found.losses);
  if (found.reference) found.reference = rows_of_all_tokens(arena, pass, found.reference);
  return found;
}

PreferenceLoss loss_of(const Pass& pass, const Scored& scored, const Tensor& weights) {
  const Batch& batch = pass.batch;
  const Tensor& targets = batch.all_targets ? batch.all_targets : batch.targets;
  return {.documents = batch.all_documents ? batch.all_documents : batch.documents,
          .kinds = batch.kinds,
          .targets = targets.view({targets.numel()}),
          .losses = scored.losses,
          .reference = scored.reference,
          .stored = batch.log_probs,
          .rule = *pass.model.loss.pairs,
          .pair_weights = batch.weights,
          .weights = weights,
          .figures = batch.figures};
}

// Sums the divergences of a batch, which are among its figures. In a context a rank sums those of its own
// rows only.
void sum_divergence(Arena& arena, const Pass& pass, const PreferenceLoss& loss, const Tensor& sum) {
  pass.stream.run(loss);
  Arena::Scope scope(arena);
  Tensor divergences = loss.figures.rows(PreferenceFigures::kDivergence, 1);
  if (pass.model.context) {
    const Tensor own = arena.alloc(MemoryTag::kActivations, "divergences of pairs", DType::kF32,
                                   {pass.batch.targets.numel()});
    take_own_rows(pass, divergences, own);
    divergences = own;
  }
  pass.stream.run(SumLosses{.losses = divergences, .sum = sum});
}

// The gradient of a pair's loss with respect to a row is a factor times the gradient of the row's cross
// entropy. These factors are the weights of rows.
Tensor weights_of(Arena& arena, const Pass& pass, const Saved& saved) {
  const Batch::Divergence& divergence = pass.batch.divergence;
  const Tensor weights =
      arena.alloc(MemoryTag::kActivations, "weights of rows", DType::kF32, {pass.batch.targets.numel()});
  Arena::Scope scope(arena);
  const Tensor of_all = pass.model.context ? arena.alloc(MemoryTag::kActivations, "weights of all rows",
                                                         DType::kF32, {rows_of_all(pass.batch)})
                                           : weights;
  PreferenceLoss loss = loss_of(pass, score(arena, pass, saved), of_all);
  if (divergence.own) {
    sum_divergence(arena, pass, loss, divergence.own);
    divergence.share();
  }
  loss.divergence = divergence.of_step, loss.gradient_scale = divergence.gradient_scale;
  pass.stream.run(loss);
  if (pass.model.context) take_own_rows(pass, of_all, weights);
  return weights;
}

}  // namespace

void measure_divergence(const Stream& stream, Arena& arena, const MeasuredDivergence& of) {
  const Model model = forward_only(of.model);
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "divergence of the answers");
  const Saved saved = allocate_saved(arena, model, Keep::nothing());
  const ActiveDropout none;
  const Pass pass{.stream = stream, .model = model, .batch = of.batch, .dropout = none};
  forward(stream, {.model = model, .batch = of.batch, .saved = saved});
  const Tensor weights =
      arena.alloc(MemoryTag::kActivations, "weights of rows", DType::kF32, {rows_of_all(of.batch)});
  sum_divergence(arena, pass, loss_of(pass, score(arena, pass, saved), weights), of.sum);
}

LossRule preference_loss(const PreferenceRule& rule, ReferenceFrom reference) {
  LossRule loss = cross_entropy();
  loss.name = name_of(rule.kind);
  loss.weights = weights_of;
  loss.needs_reference = rule.needs_reference() && reference == ReferenceFrom::kModel;
  loss.stored_reference = rule.needs_reference() && reference == ReferenceFrom::kBatch;
  loss.pairs = rule;
  return loss;
}

}  // namespace tessera
