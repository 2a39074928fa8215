// One CTA a row: the simplest attention that never stores the N x N matrix, in bf16. A rung of the ladder
// (train/bench/ladder.h), there to be read and measured.
#include "kernels/attention/family.h"

#include "kernels/attention/row/kernels.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::row {

constinit const KernelFamily kFamily = {
    .name = "row",
    .lowest_arch = kLowestArch,
    .highest_arch = kAnyLaterArch,
    .dtype = ATTN_BF16,
    .head_dims = {.step = 64, .most = 128},
    // The forward keeps a row of scores in shared memory, within the 99 KB that every chip has.
    .most_tokens = 24'000,
    .most_rows = std::numeric_limits<int32_t>::max(),  // a CTA each
    .row_padding = 1,
    .by_name_only = true,
    .most_with_dropout = 0,
    .most_with_alibi = 0,
    .alibis = Alibis::kAll,
    .with_cap = Caps::kNone,
    .masks = Masks::kPlain,
    .tile_rows =
        [](const AttnProblem& p, int) {
          return TileRows{1, 1, p.heads / p.kv_heads};
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
};

}  // namespace tessera::attention::row
