#include "model/saved.h"

#include "model/stages.h"

namespace tessera {

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
    visit_block_saved(block,
                      {.config = config,
                       .spec = block_spec(config, layer),
                       .plan = model.attention.of(layer),
                       .mlp_chunk = model.mlp_chunk},
                      [&](Stage stage, const SavedInfo& info, Tensor& tensor) {
                        if (keep.keeps(stage) == kept) take(info, tensor);
                      });
  };
  Saved saved;
  take({"embeddings", dtype, {N, C}}, saved.embedded);
  BlockSaved for_all;
  if (keep != kKeepAll) {
    Arena::Phase phase(arena, "block");
    take_those(for_all, 0, false);
  }
  saved.blocks.assign(static_cast<size_t>(config.layers), for_all);
  for (int64_t l = 0; keep != Keep::nothing() && l < config.layers; ++l) {
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
  return saved;
}

}  // namespace tessera
