#include "model/transformer.h"

#include "model/stages.h"

namespace tessera {
namespace {

void embed(const Pass& pass, const Tensor& embedded) {
  const Batch& batch = pass.batch;
  const Params& p = pass.model.params;
  pass.stream.run(EmbeddingForward{.tokens = batch.tokens,
                                   .token_table = p.token_table,
                                   .position_table = p.position_table,
                                   .y = by_sequence(pass.model, embedded),
                                   .documents = batch.documents,
                                   .starts = batch.cache ? batch.cache->starts : Tensor{}});
  drop(pass, {.x = embedded, .y = embedded, .dropout = pass.dropout.at(DropoutKind::kEmbedding)});
}

// `d`: the gradient of the embeddings, overwritten
void embed_backward(const Pass& pass, const Tensor& d) {
  const Grads& grads = *pass.grads;
  drop(pass, {.x = d, .y = d, .dropout = pass.dropout.at(DropoutKind::kEmbedding)});
  if (!grads.token_table) return;  // frozen, and so is a position table
  // Rows are added to tables. A tied one has its gradient from the classifier by now.
  if (!pass.accumulate && !pass.model.config.tied) pass.stream.run(FillZero{grads.token_table});
  if (!pass.accumulate && grads.position_table) pass.stream.run(FillZero{grads.position_table});
  pass.stream.run(EmbeddingBackward{.tokens = pass.batch.tokens,
                                    .dy = by_sequence(pass.model, d),
                                    .d_token_table = grads.token_table,
                                    .d_position_table = grads.position_table,
                                    .documents = pass.batch.documents});
}

void forward(const Pass& pass, const Saved& saved, const OnLayer& before_layer) {
  const auto before = [&](int64_t layer) {
    if (before_layer) before_layer(layer);
  };
  before(-1);
  embed(pass, saved.embedded);
  for (size_t l = 0; l < saved.blocks.size(); ++l) {
    before(static_cast<int64_t>(l));
    forward_stages(Block(pass, saved, l), Keep::nothing());
  }
  before(pass.model.config.layers);
  final_norm_forward(pass, saved);
}

}  // namespace

void forward(const Stream& stream, const ForwardOf& of) {
  forward({.stream = stream, .model = of.model, .batch = of.batch, .dropout = of.dropout}, of.saved,
          of.before_layer);
}

void evaluate_batch(const Stream& stream, Arena& arena, const EvaluateBatch& evaluated) {
  const Model& model = evaluated.model;
  const ActiveDropout no_dropout;
  const Pass pass{.stream = stream, .model = model, .batch = evaluated.batch, .dropout = no_dropout};
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "forward");
  const Saved saved = allocate_saved(arena, model, Keep::nothing());
  forward(pass, saved, {});
  phase.next("head");
  head_losses(arena, pass, {.saved = saved, .losses = evaluated.losses});
}

void train_batch(const Stream& stream, Arena& arena, const TrainBatch& trained) {
  const Model& model = trained.model;
  const Pass pass{.stream = stream,
                  .model = model,
                  .batch = trained.batch,
                  .dropout = trained.dropout,
                  .grads = &trained.grads,
                  .accumulate = trained.accumulate};
  const auto done = [&](int64_t layer) {
    if (trained.hooks.after_backward) trained.hooks.after_backward(layer);
  };
  Arena::Scope scope(arena);
  Arena::Phase phase(arena, "forward");
  const Saved saved = allocate_saved(arena, model, model.keep);
  forward(pass, saved, trained.hooks.before_forward);

  phase.next("backward");
  const Tensor& like = saved.embedded;
  const Tensor d =
      arena.alloc(MemoryTag::kActivations, "gradient of the residual stream", like.dtype, like.shape);
  {
    Arena::Phase head_phase(arena, "head");
    head_losses(arena, pass,
                {.saved = saved, .losses = trained.losses, .gradient_scale = trained.gradient_scale, .d = d});
  }
  const int64_t layers = model.config.layers;
  done(layers);
  for (int64_t l = layers - 1; l >= 0; --l) {
    Arena::Phase block_phase(arena, "block", l);
    const Block block(pass, saved, static_cast<size_t>(l));
    // Tensors that blocks share still hold the values of the last block.
    if (l < layers - 1) forward_stages(block, model.keep);
    backward_stages(arena, block, d);
    done(l);
  }
  embed_backward(pass, d);
  done(-1);
}

}  // namespace tessera
