#include "model/saved.h"

#include <algorithm>

namespace tessera {
namespace {

SavedInfo input_of_block(const Model& model) {
  return {"input of a block", model.attention.dtype(), {model.attention.rows(), model.config.channels}};
}

SavedShape shape_of(const Model& model, const BlockSpec& spec, size_t layer) {
  return {
      .config = model.config, .spec = spec, .plan = model.attention.of(layer), .mlp_chunk = model.mlp_chunk};
}

// Block l has the tensors of block l - kActivationSlots, but for its output: it lies where the input of that
// one was, since its input and that of the block between are still needed.
void take_slots(Arena& arena, const Model& model, Keep keep, Saved& saved) {
  const size_t layers = saved.blocks.size(), slots = std::min(layers, kActivationSlots);
  const TakeSaved take = [&](const SavedInfo& info, Tensor& tensor) {
    tensor = arena.alloc(info.tag, info.name, info.dtype, info.shape);
  };
  for (size_t slot = 0; slot < slots; ++slot) {
    Arena::Phase phase(arena, "slot", static_cast<int64_t>(slot));
    visit_kept(saved, model, keep, slot, take);
  }
  take(input_of_block(model), saved.blocks[slots - 1].residual_out);
  for (size_t l = slots; l < layers; ++l) {
    saved.blocks[l] = saved.blocks[l - kActivationSlots];
    saved.blocks[l].residual_out = saved.block_input(l - kActivationSlots);
  }
}

}  // namespace

void visit_kept(Saved& saved, const Model& model, Keep keep, size_t layer, const TakeSaved& visit) {
  visit(input_of_block(model), layer == 0 ? saved.embedded : saved.blocks[layer - 1].residual_out);
  const BlockSpec spec = block_spec(model.config, layer);
  BlockSaved& block = saved.blocks[layer];
  visit_block_saved(block, shape_of(model, spec, layer),
                    [&](Stage stage, const SavedInfo& info, Tensor& tensor) {
                      if (keep.keeps(stage) && &tensor != &block.residual_out) visit(info, tensor);
                    });
}

Saved allocate_saved(Arena& arena, const Model& model, Keep keep) {
  const ModelConfig& config = model.config;
  const int64_t N = model.attention.rows(), C = config.channels;
  const DType dtype = model.attention.dtype();
  const TakeSaved take = [&](const SavedInfo& info, Tensor& tensor) {
    tensor = arena.alloc(info.tag, info.name, info.dtype, info.shape);
  };
  // A tensor is allocated for every block, or once for all blocks. residual_out may be shared because a block
  // reads its input, which is then the same tensor, before it writes residual_out.
  const auto take_those = [&](BlockSaved& block, size_t layer, bool kept) {
    const BlockSpec spec = block_spec(config, layer);
    visit_block_saved(block, shape_of(model, spec, layer),
                      [&](Stage stage, const SavedInfo& info, Tensor& tensor) {
                        if (keep.keeps(stage) == kept) take(info, tensor);
                      });
  };
  const bool offloads = model.offload;
  Saved saved;
  if (!offloads) take({"embeddings", dtype, {N, C}}, saved.embedded);
  BlockSaved for_all;
  if (keep != kKeepAll) {
    Arena::Phase phase(arena, "block");
    take_those(for_all, 0, false);
  }
  saved.blocks.assign(static_cast<size_t>(config.layers), for_all);
  if (offloads) take_slots(arena, model, keep, saved);
  for (int64_t l = 0; !offloads && keep != Keep::nothing() && l < config.layers; ++l) {
    Arena::Phase phase(arena, "block", l);
    take_those(saved.blocks[static_cast<size_t>(l)], static_cast<size_t>(l), true);
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
  if (model.context) {
    saved.context = allocate_context(arena, model.context->size(), model.attention.of(0).shape, dtype);
  }
  return saved;
}

}  // namespace tessera
