#include "model/saved.h"

#include <algorithm>
#include <functional>

#include "kernels/base/check.h"

namespace tessera {
namespace {

SavedInfo input_of_block(const Model& model) {
  return {"input of a block", model.attention.dtype(), {model.attention.rows(), model.config.channels}};
}

SavedShape shape_of(const Model& model, size_t layer) {
  return {.config = model.config,
          .kind = model.kind(layer),
          .plan = model.attention.of(layer),
          .mlp_chunk = model.mlp_chunk};
}

// The block whose tensors have room for those of every other: only what attention keeps of a prompt's scores
// differs, see AttentionPlans.
size_t largest_block(const Model& model) {
  const auto size = [&](size_t layer) { return model.attention.of(layer).saved_shape.numel(); };
  size_t largest = 0;
  for (size_t l = 1; l < static_cast<size_t>(model.config.layers); ++l)
    if (size(l) > size(largest)) largest = l;
  return largest;
}

// Calls visit(tensor, info, is_kept) for the saved tensors of a block.
void visit_block(BlockSaved& block, const Model& model, size_t layer, Keep keep,
                 const std::function<void(Tensor&, const SavedInfo&, bool)>& visit) {
  const BlockKind& kind = model.kind(layer);
  visit_block_saved(block, shape_of(model, layer), [&](Stage stage, const SavedInfo& info, Tensor& tensor) {
    visit(tensor, info, kind.keeps(keep, stage));
  });
}

// The same for a block that has its backward ahead: its output is the input of the next one, and is not kept.
void visit_before_backward(BlockSaved& block, const Model& model, size_t layer,
                           const std::function<void(Tensor&, const SavedInfo&, bool)>& visit) {
  visit_block(block, model, layer, model.keep.at(layer),
              [&](Tensor& tensor, const SavedInfo& info, bool kept) {
                visit(tensor, info, kept && &tensor != &block.residual_out);
              });
}

// The first blocks, those that are offloaded, take turns in slots. A slot has all that one of them keeps.
// Block l has the tensors of block l - kActivationSlots, but for its output: it lies where the input of that
// one was, since its input and that of the block between are still needed.
void take_slots(Arena& arena, const Model& model, Saved& saved) {
  const size_t blocks = model.offloaded_blocks, slots = std::min(blocks, kActivationSlots);
  const TakeSaved take = [&](const SavedInfo& info, Tensor& tensor) {
    tensor = arena.alloc(info.tag, info.name, info.dtype, info.shape);
  };
  check(std::ranges::all_of(
            model.params->layout().kinds.distinct(),
            [&](const BlockKind& kind) { return kind.spec.experts == model.kind(0).spec.experts; }),
        "memory.offload=activations needs blocks that are alike, and some have experts (model.experts.every, "
        "model.experts.dense_layers) and some one MLP");
  std::vector<char> needed;  // of the tensors of a slot, in their order
  for (size_t l = 0; l < blocks; ++l) {
    size_t i = 0;
    BlockSaved& block = saved.blocks[l];
    visit_before_backward(block, model, l, [&](Tensor&, const SavedInfo&, bool kept) {
      if (l == 0) needed.push_back(false);
      if (kept) needed[i] = true;
      ++i;
    });
  }
  std::vector<Tensor> in_slot[kActivationSlots];
  for (size_t slot = 0; slot < slots; ++slot) {
    Arena::Phase phase(arena, "slot", static_cast<int64_t>(slot));
    take(input_of_block(model), slot == 0 ? saved.embedded : saved.blocks[slot - 1].residual_out);
    BlockSaved shapes;
    visit_block(shapes, model, slot, {}, [&](Tensor& tensor, const SavedInfo& info, bool) {
      if (needed[in_slot[slot].size()]) take(info, tensor);
      in_slot[slot].push_back(tensor);
    });
  }
  take(input_of_block(model), saved.blocks[slots - 1].residual_out);
  for (size_t l = 0; l < blocks; ++l) {
    size_t i = 0;
    BlockSaved& block = saved.blocks[l];
    visit_before_backward(block, model, l, [&](Tensor& tensor, const SavedInfo&, bool kept) {
      const Tensor& own = in_slot[l % kActivationSlots][i++];
      if (kept) tensor = own;
    });
    if (l >= slots) block.residual_out = saved.block_input(l - kActivationSlots);
  }
}

}  // namespace

void visit_kept(Saved& saved, const Model& model, size_t layer, const TakeSaved& visit) {
  visit(input_of_block(model), layer == 0 ? saved.embedded : saved.blocks[layer - 1].residual_out);
  visit_before_backward(saved.blocks[layer], model, layer,
                        [&](Tensor& tensor, const SavedInfo& info, bool kept) {
                          if (kept) visit(info, tensor);
                        });
}

Saved allocate_saved(Arena& arena, const Model& model, const ByBlock<Keep>& keep) {
  const ModelConfig& config = model.config;
  const int64_t N = model.attention.rows(), C = config.channels;
  const DType dtype = model.attention.dtype();
  const TakeSaved take = [&](const SavedInfo& info, Tensor& tensor) {
    tensor = arena.alloc(info.tag, info.name, info.dtype, info.shape);
  };
  const auto layers = static_cast<size_t>(config.layers);
  const size_t offloaded = model.offloaded_blocks;
  Saved saved;
  if (offloaded == 0) take({"embeddings", dtype, {N, C}}, saved.embedded);
  const BlockKinds& kinds = model.params->layout().kinds;
  // What some block does not keep. residual_out may be shared because a block reads its input, which is then
  // the same tensor, before it writes residual_out.
  BlockSaved for_all;
  if (keep != kKeepAll) {
    Arena::Phase phase(arena, "block");
    std::vector<size_t> of_each_kind = {largest_block(model)};  // of the other kinds what it lacks
    for (size_t k = 0; k < kinds.distinct().size(); ++k)
      of_each_kind.push_back(
          static_cast<size_t>(std::ranges::find(kinds.of_block(), k) - kinds.of_block().begin()));
    for (const size_t layer : of_each_kind) {
      const BlockKind& kind = model.kind(layer);
      visit_block_saved(for_all, shape_of(model, layer),
                        [&](Stage stage, const SavedInfo& info, Tensor& tensor) {
                          if (!tensor && !keep.all_of([&](Keep each) { return kind.keeps(each, stage); }))
                            take(info, tensor);
                        });
    }
  }
  saved.blocks.assign(layers, for_all);
  if (offloaded > 0) take_slots(arena, model, saved);
  for (size_t l = offloaded; keep != Keep::nothing() && l < layers; ++l) {
    Arena::Phase phase(arena, "block", static_cast<int64_t>(l));
    visit_block(saved.blocks[l], model, l, keep.at(l), [&](Tensor& tensor, const SavedInfo& info, bool kept) {
      if (kept) take(info, tensor);
    });
  }
  if (config.norm_embeddings) {
    take({"embeddings before their norm", dtype, {N, C}}, saved.before_norm);
    visit_norm_saved(saved.embedding_norm,
                     {.kind = config.norm,
                      .shape = {N, C},
                      .dtype = dtype,
                      .names = {"", "embedding norm mean", "embedding norm rstd"}},
                     [&](const SavedInfo& info, Tensor& tensor) {
                       if (&tensor != &saved.embedding_norm.y) take(info, tensor);
                     });
    saved.embedding_norm.y = saved.embedded;
  }
  visit_norm_saved(saved.norm,
                   {.kind = config.norm,
                    .shape = {N, C},
                    .dtype = dtype,
                    .names = {"final norm", "final norm mean", "final norm rstd"}},
                   take);
  if (const int64_t bytes = model.attention.forward_workspace_bytes(); bytes > 0)
    take({"attention forward scratch", DType::kF32, {(bytes + 3) / 4}, MemoryTag::kAttention},
         saved.attention_workspace);
  if (std::ranges::any_of(kinds.distinct(), [](const BlockKind& kind) { return kind.spec.experts; }))
    take({"what experts add to their rows", dtype, {N * config.experts.active, C}}, saved.expert_rows);
  if (model.context)
    saved.context = allocate_context(arena, model.context->size(), model.attention.of(0).shape, dtype);
  return saved;
}

}  // namespace tessera
