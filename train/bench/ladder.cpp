#include "train/bench/ladder.h"

#include <algorithm>
#include <ranges>

#include "kernels/base/check.h"

namespace tessera::attention {
namespace {

Traffic fused_forward(const AttnProblem& p, TileRows rows) { return fused_forward_traffic(p, rows.queries); }
Traffic tensor_core_backward(const AttnProblem& p, TileRows rows) {
  return tensor_core_backward_traffic(p, rows.keys, rows.heads);
}

constexpr Rung kLadder[] = {
    {.name = "naive",
     .family = nullptr,
     .least_flops = 3e13,
     .forward_formula = [](const AttnProblem& p, TileRows) { return naive_forward_traffic(p); },
     .backward_formula = [](const AttnProblem& p, TileRows) { return naive_backward_traffic(p); }},
    {.name = "row",
     .family = &row::kFamily,
     .least_flops = 5e12,
     .forward_formula = fused_forward,
     .backward_formula = [](const AttnProblem& p, TileRows) { return row_backward_traffic(p); }},
    {.name = "tiled",
     .family = &f32::kFamily,
     .least_flops = 1.2e13,
     .forward_formula = fused_forward,
     .backward_formula = [](const AttnProblem& p,
                            TileRows rows) { return tiled_backward_traffic(p, rows.keys); }},
    {.name = "tensor_cores",
     .family = &sm80::kFamily,
     .least_flops = 3e13,
     .forward_formula = fused_forward,
     .backward_formula = tensor_core_backward},
    {.name = "hopper",
     .family = &sm90::kFamily,
     .least_flops = 3e13,
     .forward_formula = fused_forward,
     .backward_formula = tensor_core_backward},
    {.name = "hopper_fp8",
     .family = &sm90::kFp8Family,
     .least_flops = 3e13,
     .forward_formula = fused_forward,
     .backward_formula = tensor_core_backward},
    {.name = "mixture",
     .family = &mixture::kFamily,
     .least_flops = 1e13,
     .forward_formula = fused_forward,
     .backward_formula = tensor_core_backward},
};

TileRows rows_of(const Rung& rung, const AttnProblem& p, int arch) {
  return rung.family ? rung.family->tile_rows(p, arch) : TileRows{};
}

std::string refusal(const KernelFamily& family, const AttnProblem& p, int arch) {
  switch (supports(family, p, arch)) {
    case ATTN_OK:
      return family.built() ? "" : "not built";
    case ATTN_BAD_ARCH:
      return std::string("needs ") + family.name;
    case ATTN_BAD_HEAD_DIM:
      return "head dim";
    case ATTN_BAD_SHAPE:
      return p.tokens > family.most_tokens ? "too long" : "shape";
    case ATTN_BAD_DROPOUT:
      return "dropout";
    case ATTN_BAD_MASK:
      return "mask";
    case ATTN_BAD_ALIBI:
      return "ALiBi";
    case ATTN_BAD_CAP:
      return "a cap of scores";
    case ATTN_BAD_BLOCKS:
      return "sparse blocks";
    case ATTN_BAD_CHOICE:
      return "choice of blocks";
    case ATTN_BAD_FP8:
    case ATTN_BAD_SINKS:
    case ATTN_BAD_STRUCT:
    case ATTN_BAD_ALIGNMENT:
    case ATTN_NO_WORKSPACE:
    case ATTN_LAUNCH_FAILED:
      break;
  }
  fail("attention family {}: supports() has no such answer", family.name);
}

}  // namespace

std::span<const Rung> ladder() { return kLadder; }

const Rung& best_rung(int arch) {
  for (const Rung& rung : kLadder | std::views::reverse) {
    const KernelFamily* family = rung.family;
    if (family && !family->in_fp8 && !family->chooses && family->built() && arch >= family->lowest_arch && arch <= family->highest_arch) return rung;
  }
  return kLadder[0];
}

DType Rung::dtype() const { return family && family->dtype == ATTN_F32 ? DType::kF32 : DType::kBF16; }

AttnProblem Rung::of_rung(AttnProblem p) const {
  p.fp8 = family && family->in_fp8;
  return p;
}

Traffic Rung::forward_traffic(const AttnProblem& p, int arch) const {
  return forward_formula(p, rows_of(*this, p, arch));
}
Traffic Rung::backward_traffic(const AttnProblem& p, int arch) const {
  return backward_formula(p, rows_of(*this, p, arch));
}

std::string Rung::why_not(const AttnProblem& p, const DeviceTraits& device) const {
  if (device.device != Device::kCuda) return "needs a GPU";
  if (family) return refusal(*family, of_rung(p), device.arch);
  constexpr int kPack = 8;  // as the backend's GEMMs need it
  return p.heads * p.head_dim % kPack == 0 && p.kv_heads * p.head_dim % kPack == 0 ? "" : "head dim";
}

}  // namespace tessera::attention
