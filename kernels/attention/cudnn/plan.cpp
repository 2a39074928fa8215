// The answers of cudnn.h that need neither cuDNN nor a device. Also linked where there is no CUDA.
#include <cmath>

#include "kernels/attention/cudnn.h"
#include "kernels/attention/family.h"
#include "kernels/attention/mask.h"
#include "kernels/base/check.h"

namespace tessera::attention {
namespace {

constexpr int kFirstInFixedOrder = 92500;  // the version, 9.25.0
constexpr int kHeadDimStep = 8;
constexpr int kLargestHeadDim = 128;  // of the backward; the forward alone would serve up to 256

constexpr int64_t kTileQ = 64, kTileK = 128;  // cuDNN's tiles, to which it pads the gradients of the scores

int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// Tables of sequence lengths, where the tokens do not fill the tiles, and what alignment takes.
int64_t slack(const AttnProblem& p) { return (int64_t{64} << 10) + 16 * p.batch; }

// What both kinds of problems share
template <class Problem>
const char* refusal_of_type(const Problem& p, int arch) {
  if (arch < kLowestArch) return "compute capability 8.0 or higher is needed";
  if (p.dtype != ATTN_BF16) return "it is asked for bf16 alone, found fp32";
  if (p.head_dim <= 0 || p.head_dim % kHeadDimStep != 0 || p.head_dim > kLargestHeadDim)
    return "head dim must be a multiple of 8, at most 128";
  return nullptr;
}

}  // namespace

const char* cudnn_decode_refusal(const AttnDecodeProblem& p, int arch) {
  if (const char* why = refusal_of_type(p, arch)) return why;
  if (p.alibi_heads != 0) return "it is asked for scores without a bias";
  if (p.score_cap != 0) return "it is asked for scores without a cap";
  if (p.sinks != 0) return "it is asked for softmax of the keys' scores alone, without learned sinks";
  if (p.blocks.size > 0) return "it is asked for attention without sparse blocks";
  return cudnn_built() ? nullptr : kCudnnNotBuilt;
}

const char* cudnn_refusal(const AttnProblem& p, int arch) {
  if (const char* why = refusal_of_type(p, arch)) return why;
  if (p.batch <= 0 || p.tokens <= 0 || p.heads <= 0 || p.kv_heads <= 0 || p.heads % p.kv_heads != 0)
    return "batch, tokens and heads must be positive, and kv_heads must divide heads";
  if (!std::isfinite(p.scale) || p.scale < 0) return "scale must be finite and not negative";
  if (p.mask.blocks.size > 0)
    return "it is asked for attention without sparse blocks (model.attention=flash)";
  if (p.mask.choice.size > 0)
    return "it is asked for attention without blocks that queries choose (model.attention=flash)";
  if (!mask_of(p).plain()) return "it is asked for causal and full attention alone (model.attention=flash)";
  if (p.alibi_heads != 0) return "it is asked for scores without a bias (model.positions=rope)";
  if (p.score_cap != 0) return "it is asked for scores without a cap (model.attention_cap=0)";
  if (p.sinks != 0)
    return "it is asked for softmax of the keys' scores alone, without learned sinks "
           "(model.attention_sinks=false)";
  if (p.dropout.threshold != 0)
    return "it draws other random numbers for dropout than our kernels (model.dropout.attention=0 turns it "
           "off)";
  return cudnn_built() ? nullptr : kCudnnNotBuilt;
}

int64_t cudnn_forward_workspace(const AttnProblem& p) { return slack(p); }

int64_t cudnn_backward_workspace(const AttnProblem& p, CudnnSums sums) {
  constexpr int64_t kBf16 = 2, kF32 = 4;
  const int64_t heads = p.batch * p.heads, rows = heads * p.tokens;
  int64_t bytes = slack(p) + kF32 * rows;  // rowsum(dO o O)
  if (p.kv_heads != p.heads)
    bytes += 2 * kBf16 * rows * p.head_dim;  // dK and dV of every query head, summed at the end
  switch (sums) {                            // dQ = dS K
    case CudnnSums::kFixedOrder:
      bytes += kF32 * rows;  // the turns; not measured
      [[fallthrough]];
    case CudnnSums::kAnyOrder:
      return bytes + kF32 * rows * p.head_dim;
    case CudnnSums::kAtOnce:
      return bytes + kBf16 * heads * round_up(p.tokens, kTileQ) * round_up(p.tokens, kTileK);
  }
  fail("attention by cuDNN: unknown way to add up dQ, {}", static_cast<int>(sums));
}

CudnnSums cudnn_sums(int arch, bool deterministic, int version) {
  if (!deterministic) return CudnnSums::kAnyOrder;
  const bool hopper = arch / 10 == kHopper / 10;
  return hopper && version >= kFirstInFixedOrder ? CudnnSums::kFixedOrder : CudnnSums::kAtOnce;
}

CudnnSums cudnn_sums(int arch, bool deterministic) {
  // The library is asked, and thus loaded, only where it matters.
  const bool matters = cudnn_sums(arch, deterministic, kFirstInFixedOrder) == CudnnSums::kFixedOrder;
  return cudnn_sums(arch, deterministic,
                    matters && cudnn_asks_for_fixed_order() ? cudnn_version_number() : 0);
}

std::string cudnn_sums_note(int arch, bool deterministic) {
  if (cudnn_sums(arch, deterministic, kFirstInFixedOrder) != CudnnSums::kFixedOrder) return "";
  const std::string version = cudnn_version();
  if (version.empty())
    return "no cuDNN is loaded here: attention's scratch is that of versions before 9.25, quadratic in the "
           "context; "
           "from 9.25 on it is linear";
  if (cudnn_sums(arch, deterministic) == CudnnSums::kFixedOrder)
    return fmt::format(
        "attention's scratch is that of cuDNN {}, linear in the context; before 9.25 it is quadratic",
        version);
  return fmt::format(
      "attention's scratch is that of cuDNN {}, quadratic in the context; from 9.25 on it is linear",
      version);
}

}  // namespace tessera::attention
