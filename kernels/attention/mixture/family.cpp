#include "kernels/attention/family.h"

#include "kernels/attention/mixture.h"
#include "kernels/attention/mixture/decode_workspace.h"
#include "kernels/attention/mixture/kernels.h"

namespace tessera::attention::mixture {
namespace {

size_t workspace(const AttnProblem& p, bool backward) {
  return MixtureWorkspace(nullptr, p, backward, kv_heads_at_once(p, backward)).bytes;
}

constexpr KernelFamily family_of(AttnDtype dtype, const char* name) {
  return {.name = name,
          .lowest_arch = kLowestArch,
          .highest_arch = kAnyLaterArch,
          .dtype = dtype,
          .head_dims = {.step = 8, .most = 256},
          .most_tokens = kMostTokens,
          .most_rows = kMostRows,
          .row_padding = 1,
          .by_name_only = false,
          .most_with_dropout = 0,
          .most_with_alibi = 0,
          .alibis = Alibis::kAll,
          .with_cap = Caps::kAll,
          .masks = Masks::kAll,
          .tile_rows =
              [](const AttnProblem& p, int) {
                return TileRows{RowTables::kAlignment, RowTables::kAlignment, p.heads / p.kv_heads};
              },
          .forward_workspace = [](const AttnProblem& p) { return workspace(p, false); },
          .backward_workspace = [](const AttnProblem& p) { return workspace(p, true); },
#ifdef TESSERA_ATTENTION_CUDA
          .forward = forward,
          .backward = backward,
#else
          .forward = nullptr,
          .backward = nullptr,
#endif
          .chooses = true};
}

}  // namespace

size_t decode_workspace(const AttnDecodeProblem& p, const AttnChoice& choice) {
  return DecodeWorkspace(nullptr, p, choice).bytes;
}

constinit const KernelFamily kFamily = family_of(ATTN_BF16, "mixture of blocks"),
                             kF32Family = family_of(ATTN_F32, "mixture of blocks in fp32");

}  // namespace tessera::attention::mixture
