// The families, and the answers of attention.h that need no device. Also linked where there is no CUDA.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "kernels/attention/blocks.h"
#include "kernels/attention/family.h"
#include "kernels/attention/mask.h"
#include "kernels/attention/mixture.h"
#include "kernels/attention/sinks.h"
#include "kernels/base/dropout.h"

namespace tessera::attention {
namespace {

constexpr int64_t kMostHeads = 65535;  // and batches: a grid's y and z

bool shape_served(const KernelFamily& family, const AttnProblem& p) {
  if (p.batch <= 0 || p.tokens <= 0 || p.kv_tokens <= 0 || p.heads <= 0 || p.kv_heads <= 0) return false;
  if (p.heads % p.kv_heads != 0) return false;
  const int64_t most_tokens = std::max(p.tokens, p.kv_tokens);
  if (p.batch > kMostHeads || p.heads > kMostHeads || most_tokens > family.most_tokens) return false;
  const int64_t padding = family.row_padding;
  const int64_t padded_tokens = (most_tokens + padding - 1) / padding * padding;
  return p.batch * p.heads <= family.most_rows / padded_tokens;
}

bool dropout_served(const KernelFamily& family, const AttnProblem& p) {
  const AttnDropout& d = p.dropout;
  if (d.threshold < 0 || d.threshold >= Dropout::kResolution) return false;
  if (d.place % Dropout::kHeads + p.heads > Dropout::kHeads) return false;
  return d.threshold == 0 || p.head_dim <= family.most_with_dropout;
}

bool mask_served(const KernelFamily& family, const AttnProblem& p) {
  const AttnMask& m = p.mask;
  if (m.window < 0 || m.window > kMostTokens || m.offset < -kMostTokens || m.offset > kMostTokens)
    return false;
  if (m.causal == 0 && (m.window > 0 || m.offset != 0)) return false;
  if (m.query_tokens != nullptr && m.seen_by == nullptr) return false;
  if (m.seen_by != nullptr) {
    if (m.documents == nullptr || m.causal != 0) return false;
  } else if (m.documents != nullptr && (m.offset != 0 || p.kv_tokens != p.tokens)) {
    return false;
  }
  switch (family.masks) {
    case Masks::kPlain:
      return mask_of(p).plain();
    case Masks::kAllWithoutDropout:
      return mask_of(p).plain() || p.dropout.threshold == 0;
    case Masks::kAll:
      return true;
  }
  return false;
}

// "head dims that are multiples of 8 up to 256 in bf16, ..."
std::string served_head_dims() {
  std::map<AttnDtype, std::vector<HeadDims>> head_dims;  // no rule contains another
  for (const KernelFamily* family : families()) {
    if (family->by_name_only) continue;
    std::vector<HeadDims>& known = head_dims[family->dtype];
    const HeadDims its = family->head_dims;
    if (std::ranges::any_of(known, [&](HeadDims other) { return other.contains(its); })) continue;
    std::erase_if(known, [&](HeadDims other) { return its.contains(other); });
    known.push_back(its);
  }
  std::string text = "head dims that are";
  for (const auto& [dtype, rules] : head_dims) {
    for (size_t i = 0; i < rules.size(); ++i) text += (i == 0 ? " " : " and ") + rules[i].text();
    text += dtype == ATTN_BF16 ? " in bf16," : " in fp32,";
  }
  text.pop_back();
  return text;
}

std::string served_archs() {
  int lowest = kAnyLaterArch;
  for (const KernelFamily* family : families())
    if (!family->by_name_only) lowest = std::min(lowest, family->lowest_arch);
  return "compute capability " + std::to_string(lowest / 10) + "." + std::to_string(lowest % 10) +
         " or higher";
}

bool decode_shape_served(const DecodeFamily& family, const AttnDecodeProblem& p) {
  if (p.batch <= 0 || p.capacity <= 0 || p.heads <= 0 || p.kv_heads <= 0 || p.heads % p.kv_heads != 0)
    return false;
  if (p.batch > kMostHeads || p.heads > kMostHeads || p.capacity > kMostTokens) return false;
  return std::isfinite(p.scale) && p.scale >= 0 && family.units(p) <= kMostUnits;
}

template <class Problem>  // AttnProblem or AttnDecodeProblem
bool slopes_served(const Problem& p, int most_head_dim) {
  if (p.alibi_heads == 0) return p.first_head == 0;
  if (p.first_head < 0 || p.alibi_heads < 0 || p.alibi_heads > kMostHeads) return false;
  // The bias is added to q k^T, divided by the scale.
  return p.first_head + p.heads <= p.alibi_heads && p.scale > 0 && p.head_dim <= most_head_dim;
}
bool alibi_served(const KernelFamily& family, const AttnProblem& p) {
  if (!slopes_served(p, family.most_with_alibi)) return false;
  if (p.alibi_heads == 0) return true;
  const bool knows_queries = p.mask.seen_by == nullptr || p.mask.query_tokens != nullptr;
  return knows_queries && (family.alibis == Alibis::kAll || (p.mask.causal != 0 && p.dropout.threshold == 0));
}

template <class Problem>  // AttnProblem or AttnDecodeProblem
bool cap_served(const Problem& p) {
  if (p.score_cap == 0) return true;
  // q k^T is capped at c / scale.
  return std::isfinite(p.score_cap) && p.score_cap > 0 && p.alibi_heads == 0 && p.scale > 0;
}
bool cap_served(const KernelFamily& family, const AttnProblem& p) {
  if (p.score_cap == 0 || family.with_cap == Caps::kAll) return cap_served(p);
  return family.with_cap == Caps::kWithoutDropout && p.dropout.threshold == 0 && cap_served(p);
}

bool blocks_served(const KernelFamily& family, const AttnProblem& p) {
  const AttnBlocks& b = p.mask.blocks;
  if (b.size == 0) return true;
  if (b.size < kSmallestBlock || (b.size & (b.size - 1)) != 0) return false;
  if (b.lists <= 0 || p.kv_heads % b.lists != 0) return false;
  const int64_t offset = p.mask.offset;
  if (offset < 0 || offset % b.size != 0) return false;
  if (int64_t{b.query_blocks} * b.size < offset + p.tokens || int64_t{b.key_blocks} * b.size < p.kv_tokens)
    return false;
  return p.head_dim <= family.most_with_blocks && p.dropout.threshold == 0 && p.alibi_heads == 0 &&
         p.score_cap == 0;
}

// Whether a problem may have its AttnChoice, and kernels serve the attention of its rows on this device
bool choice_served(const AttnProblem& p, int arch) {
  if (!is_choice(p.mask.choice.size, p.mask.choice.count)) return false;
  if (p.mask.causal == 0 && p.mask.seen_by == nullptr) return false;
  if (p.mask.window > 0 || p.mask.offset < 0) return false;
  const AttnProblem part = part_of(p, 1);
  Carver carver(nullptr);
  AttnProblem rows = problem_of_rows(part, RowTables(carver, part));
  static const int32_t kNone = 0;
  rows.mask.documents = rows.mask.seen_by = &kNone;
  return attn_supports(&rows, arch) == ATTN_OK;
}

bool blocks_served(const AttnDecodeProblem& p) {
  const AttnBlocks& b = p.blocks;
  if (b.size == 0) return true;
  if (b.size < kSmallestBlock || (b.size & (b.size - 1)) != 0 || b.lists != 1) return false;
  return int64_t{std::min(b.query_blocks, b.key_blocks)} * b.size >= p.capacity;
}

}  // namespace

std::span<const KernelFamily* const> families() {
  static constexpr const KernelFamily* kFamilies[] = {
      &sm90::kFamily, &sm90::kFp8Family, &sm80::kFamily,      &f32::kFamily,
      &row::kFamily,  &mixture::kFamily, &mixture::kF32Family};
  return kFamilies;
}

AttnStatus supports(const KernelFamily& family, const AttnProblem& p, int arch) {
  if (arch < family.lowest_arch || arch > family.highest_arch) return ATTN_BAD_ARCH;
  if (p.dtype != family.dtype || !family.head_dims.contains(p.head_dim)) return ATTN_BAD_HEAD_DIM;
  if ((p.mask.choice.size != 0) != family.chooses) return ATTN_BAD_CHOICE;
  if ((p.fp8 != 0) != family.in_fp8) return ATTN_BAD_FP8;
  if (!shape_served(family, p)) return ATTN_BAD_SHAPE;
  if (!std::isfinite(p.scale) || p.scale < 0) return ATTN_BAD_SHAPE;
  if (!dropout_served(family, p)) return ATTN_BAD_DROPOUT;
  if (!mask_served(family, p)) return ATTN_BAD_MASK;
  if (!cap_served(family, p)) return ATTN_BAD_CAP;
  if (!blocks_served(family, p)) return ATTN_BAD_BLOCKS;
  if (!alibi_served(family, p)) return ATTN_BAD_ALIBI;
  return !family.chooses || choice_served(p, arch) ? ATTN_OK : ATTN_BAD_CHOICE;
}

size_t forward_workspace(const KernelFamily& family, const AttnProblem& problem) {
  return family.forward_workspace != nullptr ? family.forward_workspace(problem) : 0;
}

size_t own_backward_workspace(const KernelFamily& family, const AttnProblem& problem) {
  constexpr size_t kAlignment = 256;
  return (family.backward_workspace(problem) + kAlignment - 1) / kAlignment * kAlignment;
}

size_t backward_workspace(const KernelFamily& family, const AttnProblem& problem) {
  return problem.sinks == 0
             ? family.backward_workspace(problem)
             : own_backward_workspace(family, problem) + workspace_bytes<SinkWorkspace>(problem);
}

std::string what_is_served() { return served_head_dims() + ", on " + served_archs(); }

}  // namespace tessera::attention

using namespace tessera::attention;

extern "C" AttnStatus attn_supports(const AttnProblem* problem, int arch) {
  if (problem->struct_size != sizeof(AttnProblem)) return ATTN_BAD_STRUCT;
  AttnStatus reason = ATTN_BAD_ARCH;  // of the family that comes closest: arch, then head dim, then the rest
  for (const KernelFamily* family : families()) {
    if (family->by_name_only) continue;
    const AttnStatus status = supports(*family, *problem, arch);
    if (status == ATTN_OK) return ATTN_OK;
    if ((problem->mask.choice.size != 0) != family->chooses) continue;
    if ((problem->fp8 != 0) != family->in_fp8) {
      if (problem->fp8 != 0 && reason == ATTN_BAD_ARCH) reason = ATTN_BAD_FP8;
      continue;
    }
    if (reason == ATTN_BAD_ARCH || (status != ATTN_BAD_ARCH && status != ATTN_BAD_HEAD_DIM)) reason = status;
  }
  return reason;
}

namespace {

// Enough for every family that serves the problem: which of them were built is not asked here.
template <class Bytes>  // of a family
size_t most_workspace(const AttnProblem& problem, int arch, Bytes&& bytes_of) {
  size_t bytes = 0;
  if (problem.struct_size != sizeof(AttnProblem)) return bytes;
  for (const KernelFamily* family : families()) {
    if (!family->by_name_only && supports(*family, problem, arch) == ATTN_OK)
      bytes = std::max(bytes, bytes_of(*family));
  }
  return bytes;
}

}  // namespace

extern "C" size_t attn_forward_workspace(const AttnProblem* problem, int arch) {
  return most_workspace(*problem, arch,
                        [&](const KernelFamily& f) { return forward_workspace(f, *problem); });
}

extern "C" size_t attn_backward_workspace(const AttnProblem* problem, int arch) {
  return most_workspace(*problem, arch,
                        [&](const KernelFamily& f) { return backward_workspace(f, *problem); });
}

extern "C" AttnStatus attn_decode_supports(const AttnDecodeProblem* problem, int arch) {
  const DecodeFamily& family = decode::kFamily;
  if (problem->struct_size != sizeof(AttnDecodeProblem)) return ATTN_BAD_STRUCT;
  if (arch < family.lowest_arch) return ATTN_BAD_ARCH;
  if (!family.head_dims.contains(problem->head_dim)) return ATTN_BAD_HEAD_DIM;
  if (!decode_shape_served(family, *problem)) return ATTN_BAD_SHAPE;
  if (!cap_served(*problem)) return ATTN_BAD_CAP;
  if (!blocks_served(*problem)) return ATTN_BAD_BLOCKS;
  return slopes_served(*problem, family.head_dims.most) ? ATTN_OK : ATTN_BAD_ALIBI;
}

extern "C" size_t attn_decode_workspace(const AttnDecodeProblem* problem, int arch) {
  return attn_decode_supports(problem, arch) == ATTN_OK ? decode::kFamily.workspace(*problem) : 0;
}

extern "C" const char* attn_status_text(AttnStatus status) {
  static const std::string head_dim = "no kernel serves this head_dim; served are " + served_head_dims(),
                           arch =
                               "no kernel serves this compute capability: " + served_archs() + " is needed";
  switch (status) {
    case ATTN_OK:
      return "ok";
    case ATTN_BAD_HEAD_DIM:
      return head_dim.c_str();
    case ATTN_BAD_SHAPE:
      return "batch, tokens, kv_tokens, capacity, heads must be positive and fit the grid; kv_heads must "
             "divide heads; scale must be finite and not negative";
    case ATTN_BAD_ALIGNMENT:
      return "pointers and strides must be multiples of 16 bytes, the workspace of 256";
    case ATTN_BAD_ARCH:
      return arch.c_str();
    case ATTN_NO_WORKSPACE:
      return "the workspace is missing or smaller than attn_forward_workspace(), attn_backward_workspace() "
             "or "
             "attn_decode_workspace() says";
    case ATTN_LAUNCH_FAILED:
      return "the CUDA runtime refused the launch: cudaGetLastError() says why";
    case ATTN_BAD_DROPOUT:
      return "the threshold of dropout must be 0 to 255, and its place modulo 65536 plus heads at most "
             "65536; or no kernel serves dropout with this problem";
    case ATTN_BAD_MASK:
      return "a window and an offset need a causal mask; documents need as many keys as queries and no "
             "offset; seen_by needs documents and no causal mask, query_tokens seen_by; or no kernel serves "
             "this mask with this problem";
    case ATTN_BAD_ALIBI:
      return "alibi_heads must be 0 or at least first_head plus heads, with a scale above 0; seen_by needs "
             "query_tokens; or no kernel serves ALiBi with this problem";
    case ATTN_BAD_CAP:
      return "score_cap must be 0 or finite and above 0, with a scale above 0 and without ALiBi; or no "
             "kernel "
             "serves a cap of scores with this problem";
    case ATTN_BAD_SINKS:
      return "sinks must be given with problem.sinks and only then, and so dsinks";
    case ATTN_BAD_BLOCKS:
      return "the size of sparse blocks must be a power of two from 128 on, their lists must divide kv_heads "
             "and have all blocks of queries and keys, in decoding there is one list, and the offset must "
             "be a multiple of the size; or no kernel serves sparse blocks with this problem (dropout, "
             "ALiBi, a cap of scores)";
    case ATTN_BAD_FP8:
      return "products in FP8 need bf16 on compute capability 9.0";
    case ATTN_BAD_CHOICE:
      return "the blocks to choose from must have a power of two up to 65536 tokens, and 1 to 32 of them "
             "are seen, with causal or seen_by and without a window, a negative offset, sparse blocks, "
             "dropout, "
             "ALiBi or fp8; or no kernel serves the choice with this problem";
    case ATTN_BAD_STRUCT:
      return "struct_size must be sizeof(AttnProblem), or sizeof(AttnDecodeProblem), of this library's "
             "attention.h";
  }
  return "unknown status";
}
