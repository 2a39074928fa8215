#include "train/bench/ladder.h"

#include <algorithm>

#include "kernels/attention/kernels.h"
#include "kernels/attention/row/row.h"
#include "kernels/base/check.h"
#include "train/bench/traffic.h"

namespace tessera::attention {
namespace {

constexpr int kHopper = 90;

// The kernels that the rung "tensor cores" stands for on any device.
int before_hopper(int arch) { return arch == kHopper ? 80 : arch; }

size_t row_workspace(const AttnProblem& p, int /*arch*/) {
  return row::BackwardWorkspace(nullptr, p.batch, p.heads, p.tokens).bytes;
}
size_t workspace(const AttnProblem& p, int arch) {
  return std::max(attn_backward_workspace(&p, arch, 0), attn_backward_workspace(&p, arch, 1));
}
size_t workspace_before_hopper(const AttnProblem& p, int arch) { return workspace(p, before_hopper(arch)); }

#ifdef TESSERA_HAS_CUDA
AttnStatus row_forward(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  return row::forward(f, stream);
}
AttnStatus row_backward(const AttnBackward& f, int /*arch*/, CUstream_st* stream) {
  return row::backward(f, stream);
}
AttnStatus chosen_forward(const AttnForward& f, int arch, CUstream_st* stream) {
  return attn_forward(&f, arch, stream);
}
AttnStatus chosen_backward(const AttnBackward& f, int arch, CUstream_st* stream) {
  return attn_backward(&f, arch, stream);
}
AttnStatus forward_before_hopper(const AttnForward& f, int arch, CUstream_st* stream) {
  return attn_forward(&f, before_hopper(arch), stream);
}
AttnStatus backward_before_hopper(const AttnBackward& f, int arch, CUstream_st* stream) {
  return attn_backward(&f, before_hopper(arch), stream);
}
#else
constexpr std::nullptr_t row_forward = nullptr, row_backward = nullptr, chosen_forward = nullptr,
                         chosen_backward = nullptr, forward_before_hopper = nullptr,
                         backward_before_hopper = nullptr;
#endif

// How many rows share what a CTA reads: queries the keys and values, keys the queries and their gradients.
constexpr int kTiledRows = 64, kTensorCoreQueries = 128, kTensorCoreKeys = 128, kHopperQueries = 192,
              kHopperKeys = 128;

constexpr Rung kLadder[] = {
    {.name = "naive",
     .idea = "Three matrix operations: the N x N matrix of probabilities is written, read, and saved.",
     .source = "kernels/cuda/attention.cu",
     .dtype = DType::kBF16,
     .most_tokens = 0,
     .grouped_heads = false,
     .forward = nullptr,
     .backward = nullptr,
     .backward_workspace = nullptr,
     .forward_traffic = naive_forward_traffic,
     .backward_traffic = [](const AttnProblem& p, bool) { return naive_backward_traffic(p); }},
    {.name = "row",
     .idea = "One CTA a row: scores live in shared memory alone, and the backward recomputes them.",
     .source = "kernels/attention/row/",
     .dtype = DType::kBF16,
     .most_tokens = row::kMostTokens,
     .grouped_heads = true,
     .forward = row_forward,
     .backward = row_backward,
     .backward_workspace = row_workspace,
     .forward_traffic = [](const AttnProblem& p) { return fused_forward_traffic(p, 1); },
     .backward_traffic = [](const AttnProblem& p, bool) { return row_backward_traffic(p); }},
    {.name = "tiled",
     .idea = "A CTA takes a tile of rows and walks tiles of keys with a softmax that streams, in fp32.",
     .source = "kernels/attention/f32/",
     .dtype = DType::kF32,
     .most_tokens = 0,
     .grouped_heads = true,
     .forward = chosen_forward,
     .backward = chosen_backward,
     .backward_workspace = workspace,
     .forward_traffic = [](const AttnProblem& p) { return fused_forward_traffic(p, kTiledRows); },
     .backward_traffic = [](const AttnProblem& p, bool) { return tiled_backward_traffic(p, kTiledRows); }},
    {.name = "tensor_cores",
     .idea = "Products on tensor cores; probabilities pass from one to the next in registers.",
     .source = "kernels/attention/sm80/",
     .dtype = DType::kBF16,
     .most_tokens = 0,
     .grouped_heads = true,
     .forward = forward_before_hopper,
     .backward = backward_before_hopper,
     .backward_workspace = workspace_before_hopper,
     .forward_traffic = [](const AttnProblem& p) { return fused_forward_traffic(p, kTensorCoreQueries); },
     .backward_traffic =
         [](const AttnProblem& p, bool deterministic) {
           return tensor_core_backward_traffic(p, kTensorCoreKeys, deterministic);
         }},
    {.name = "hopper",
     .idea =
         "Warps with roles: one feeds tiles through the copy engine, warpgroups multiply and exponentiate.",
     .source = "kernels/attention/sm90/",
     .dtype = DType::kBF16,
     .most_tokens = 0,
     .grouped_heads = true,
     .forward = chosen_forward,
     .backward = chosen_backward,
     .backward_workspace = workspace,
     .forward_traffic = [](const AttnProblem& p) { return fused_forward_traffic(p, kHopperQueries); },
     .backward_traffic =
         [](const AttnProblem& p, bool deterministic) {
           return tensor_core_backward_traffic(p, kHopperKeys, deterministic);
         }},
};

}  // namespace

std::span<const Rung> ladder() { return kLadder; }

std::string Rung::why_not(const AttnProblem& p, const DeviceTraits& device) const {
  if (device.device != Device::kCuda) return "needs a GPU";
  if (std::string_view(name) == "hopper" && device.arch != kHopper) return "needs sm90";
#ifndef TESSERA_ATTENTION_SM90
  if (std::string_view(name) == "hopper") return "not built";
#endif
  if (!grouped_heads && p.kv_heads != p.heads) return "grouped heads";
  if (most_tokens > 0 && p.tokens > most_tokens) return "too long";
  if (backward_workspace == nullptr) {  // naive: as the backend's matrix products want it
    constexpr int kPack = 8;
    return p.heads * p.head_dim % kPack == 0 ? "" : "head dim";
  }
  switch (attn_supports(&p, device.arch)) {
    case ATTN_OK:
      return "";
    case ATTN_BAD_HEAD_DIM:
      return "head dim";
    case ATTN_BAD_ARCH:
      return "arch";
    default:
      return "shape";
  }
}

}  // namespace tessera::attention
