#include "model/preference_loss.h"

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
  }
  return "";
}

// The gradient of a pair's loss with respect to a row is a number times that of the row's cross entropy.
Tensor weights_of(const PreferenceRule& rule, Arena& arena, const Pass& pass, const Saved& saved) {
  const Batch& batch = pass.batch;
  const Shape rows{batch.targets.numel()};
  const auto take = [&](const char* name) {
    return arena.alloc(MemoryTag::kActivations, name, DType::kF32, rows);
  };
  const Tensor weights = take("weights of rows");
  Arena::Scope scope(arena);
  const Tensor losses = take("losses of rows");
  const Tensor reference = pass.model.loss.needs_reference ? take("losses of the reference") : Tensor{};
  head_losses(arena, pass, {.saved = saved, .losses = losses});
  if (reference)
    evaluate_batch(pass.stream, arena, {.model = *pass.model.reference, .batch = batch, .losses = reference});
  pass.stream.run(PreferenceLoss{.documents = batch.documents,
                                 .kinds = batch.kinds,
                                 .targets = batch.targets.view(rows),
                                 .losses = losses,
                                 .reference = reference,
                                 .stored = batch.log_probs,
                                 .rule = rule,
                                 .weights = weights,
                                 .figures = batch.figures});
  return weights;
}

}  // namespace

LossRule preference_loss(const PreferenceRule& rule, ReferenceFrom reference) {
  LossRule loss = cross_entropy();
  loss.name = name_of(rule.kind);
  loss.weights = [rule](Arena& arena, const Pass& pass, const Saved& saved) {
    return weights_of(rule, arena, pass, saved);
  };
  loss.needs_reference = rule.needs_reference() && reference == ReferenceFrom::kModel;
  loss.stored_reference = rule.needs_reference() && reference == ReferenceFrom::kBatch;
  loss.pairs = rule;
  return loss;
}

}  // namespace tessera
