// fp32 throughout, no tensor cores: a CTA takes a tile of rows and walks
// tiles of keys with a softmax that streams.
#include "kernels/attention/family.h"

#include "kernels/attention/f32/kernels.h"
#include "kernels/attention/f32/shape.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::f32 {

constinit const KernelFamily kFamily = {
    .name = "f32",
    .lowest_arch = kLowestArch,
    .highest_arch = kAnyLaterArch,
    .dtype = ATTN_F32,
    .head_dims = {.step = 8, .most = 256},
    .most_tokens = kMostTokens,
    .most_rows = kMostRows,
    .row_padding = 1,
    .by_name_only = false,
    .most_with_dropout = 256,
    .most_with_alibi = 256,
    .alibis = Alibis::kAll,
    .with_cap = Caps::kAll,
    .masks = Masks::kAll,
    .tile_rows =
        [](const AttnProblem& p, int) {
          const int rows = tile_rows(p.head_dim);
          return TileRows{rows, rows, p.heads / p.kv_heads};
        },
    .forward_workspace = nullptr,
    .backward_workspace = workspace_bytes<DeltaWorkspace>,
#ifdef TESSERA_ATTENTION_CUDA
    .forward = forward,
    .backward = backward,
#else
    .forward = nullptr,
    .backward = nullptr,
#endif
    .most_with_blocks = 256,
};

}  // namespace tessera::attention::f32
