#include "model/transformer.h"

#include <utility>

#include "model/activation_offload.h"
#include "model/stages.h"

namespace tessera {
namespace {

// Of the embeddings, whose norm the first block reads; `y`: what it writes, or the gradient of that
Norm embedding_norm(const Pass& pass, const Saved& saved, const NormSaved& y, const NormWeights& weights) {
  const ModelConfig& config = pass.model.config;
  return {config.norm, config.norm_epsilon, config.norm_offset(), weights, y, saved.before_norm};
}

void embed(const Pass& pass, const Saved& saved) {
  const Tensor& embedded = saved.embedded;
  pass.stream.enter(OpPlace::kTables, /*backward=*/false);
  const Batch& batch = pass.batch;
  const WeightLease<TableParams> tables = pass.model.lease_tables();
  const bool normed = pass.model.config.norm_embeddings;
  pass.stream.run(EmbeddingForward{.tokens = batch.tokens,
                                   .token_table = tables->token_table,
                                   .position_table = tables->position_table,
                                   .y = by_sequence(pass.model, normed ? saved.before_norm : embedded),
                                   .scale = embedding_scale(pass.model.config, embedded.dtype),
                                   .positions = batch.positions,
                                   .starts = batch.cache ? batch.cache->starts : Tensor{}});
  if (normed)
    norm_forward(pass.stream, embedding_norm(pass, saved, saved.embedding_norm, tables->embedding_norm));
  drop(pass, {.x = embedded, .y = embedded, .dropout = pass.dropout.at(DropoutKind::kEmbedding)});
}

// `d`: the gradient of the first block's input, overwritten, and so is that input
void embed_backward(const Pass& pass, const Saved& saved, Tensor d) {
  pass.stream.enter(OpPlace::kTables, /*backward=*/true);
  const GradientScope<TableParams> scope = pass.model.params->table_gradients();
  const TableParams& gradients = *scope;
  drop(pass, {.x = d, .y = d, .dropout = pass.dropout.at(DropoutKind::kEmbedding)});
  if (!gradients.token_table) return;  // frozen, and so is a position table
  if (pass.model.config.norm_embeddings) {
    const WeightLease<TableParams> tables = pass.model.lease_tables();
    NormSaved gradient = saved.embedding_norm;
    gradient.y = std::exchange(d, saved.embedded);
    norm_backward(pass.stream, embedding_norm(pass, saved, gradient, tables->embedding_norm),
                  {.gradients = gradients.embedding_norm, .dx = d, .accumulate = pass.accumulate});
  }
  // Rows are added to tables. A tied one has its gradient from the classifier by now.
  if (!pass.accumulate && !pass.model.config.tied) pass.stream.run(FillZero{gradients.token_table});
  if (!pass.accumulate && gradients.position_table) pass.stream.run(FillZero{gradients.position_table});
  pass.stream.run(EmbeddingBackward{.tokens = pass.batch.tokens,
                                    .dy = by_sequence(pass.model, d),
                                    .d_token_table = gradients.token_table,
                                    .d_position_table = gradients.position_table,
                                    .scale = embedding_scale(pass.model.config, d.dtype),
                                    .positions = pass.batch.positions});
}

void forward(const Pass& pass, const Saved& saved) {
  embed(pass, saved);
  ActivationOffload* offload = pass.model.offload;
  for (size_t l = 0; l < saved.blocks.size(); ++l) {
    if (offload) offload->begin_forward(l);
    forward_stages(Block(pass, saved, l), Keep::nothing());
    if (offload) offload->end_forward(l);
  }
  final_norm_forward(pass, saved);
}

}  // namespace

void forward(const Stream& stream, const ForwardOf& of) {
  forward({.stream = stream,
           .model = of.model,
           .batch = of.batch,
           .dropout = of.dropout,
           .choice_counts = of.choice_counts},
          of.saved);
}

void evaluate_batch(const Stream& stream, Arena& arena, const EvaluateBatch& evaluated) {
  const Model& model = evaluated.model;
  const ActiveDropout no_dropout;
  const Pass pass{.stream = stream, .model = model, .batch = evaluated.batch, .dropout = no_dropout};
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "forward");
  const Saved saved = allocate_saved(arena, model, Keep::nothing());
  forward(pass, saved);
  phase.next("head");
  head_losses(arena, pass, {.saved = saved, .losses = evaluated.losses});
}

void count_choices(const Stream& stream, Arena& arena, const CountChoices& counted) {
  const Model model = forward_only(counted.model);
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "choices of experts");
  const Saved saved = allocate_saved(arena, model, Keep::nothing());
  forward(stream, {.model = model,
                   .batch = counted.batch,
                   .saved = saved,
                   .dropout = counted.dropout,
                   .choice_counts = counted.counts});
}

void train_batch(const Stream& stream, Arena& arena, const TrainBatch& trained) {
  const Model& model = trained.model;
  const Pass pass{.stream = stream,
                  .model = model,
                  .batch = trained.batch,
                  .dropout = trained.dropout,
                  .accumulate = trained.accumulate,
                  .backward_probe = trained.probe};
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "forward");
  Saved saved = allocate_saved(arena, model, model.keep);
  ActivationOffload* offload = model.offload;
  if (offload) offload->use(saved, model);
  Pass probed = pass;  // not what the backward computes again
  probed.probe = trained.probe;
  probed.choice_counts = trained.choice_counts;
  probed.largest_scores = trained.largest_scores;
  if (trained.probe && trained.probe->saturated) stream.run(FillZero{trained.probe->saturated});
  forward(probed, saved);
  if (trained.after_forward) trained.after_forward();

  phase.next("backward");
  const Tensor& like = saved.embedded;
  const Tensor d =
      arena.alloc(MemoryTag::kActivations, "gradient of the residual stream", like.dtype, like.shape);
  // A block's gradients begin before the backward above it, which writes one of them, and end after its own.
  const auto gradients_below = [&](size_t layer) {
    return layer > 0 ? model.params->block_gradients(layer - 1) : GradientScope<BlockParams>();
  };
  const size_t layers = saved.blocks.size();
  GradientScope<BlockParams> gradients = gradients_below(layers);
  {
    Arena::Phase head_phase(arena, "head");
    const GradientScope<HeadParams> head_gradients = model.params->head_gradients();
    head_losses(arena, pass,
                {.saved = saved,
                 .losses = trained.losses,
                 .gradients = head_gradients.get(),
                 .below = gradients.get(),
                 .gradient_scale = trained.gradient_scale,
                 .d = d});
  }
  for (size_t l = layers; l-- > 0;) {
    Arena::Phase block_phase(arena, "block", static_cast<int64_t>(l));
    GradientScope<BlockParams> below = gradients_below(l);
    if (offload) offload->begin_backward(l);
    const Block block(pass, saved, l, LeaseFor::kBackward);
    if (runs_again(model, l)) forward_stages(block, model.keep.at(l));
    backward_stages(arena, block, {.gradients = gradients, .below = below, .d = d});
    if (offload) offload->end_backward(l);
    gradients = std::move(below);
  }
  embed_backward(pass, saved, d);
}

}  // namespace tessera
