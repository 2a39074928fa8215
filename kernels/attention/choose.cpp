#include "kernels/attention/choose.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/cpu_workspace.h"
#include "kernels/attention/cudnn.h"
#include "kernels/attention/family.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

constexpr int64_t kLargestCpuHeadDim = 512;  // the CPU's tiles of this width still fit a core's L2 cache

// "head dim 80 in bf16 (mask: causal, window 128) on NVIDIA H200 (compute capability 9.0)"
std::string request_text(const AttentionPlan& plan, const DeviceTraits& device) {
  const AttentionShape& s = plan.shape;
  std::string mask = to_string(s.mask);
  if (s.kv_tokens != s.tokens) mask += fmt::format(", {} keys for {} queries", s.kv_tokens, s.tokens);
  return fmt::format("head dim {} in {} (mask: {}) on {} (compute capability {}.{})", s.head_dim,
                     name_of(plan.dtype), mask, device.name, device.arch / 10, device.arch % 10);
}

// Adds the buffers in which naive attention and the CPU choose blocks. They come first in a workspace.
void plan_choice(AttentionPlan& plan) {
  if (!plan.shape.mask.choice) return;
  check(!plan.dropout && plan.shape.scores.alibi_heads == 0,
        "attention whose queries choose blocks has neither dropout nor ALiBi, found {}: set "
        "model.dropout.attention=0",
        plan.dropout ? "dropout" : "ALiBi");
  plan.choice_bytes = static_cast<int64_t>(choice_of(plan, {}).bytes);
  plan.forward_workspace_bytes += plan.choice_bytes;
  plan.backward_workspace_bytes += plan.choice_bytes;
}

AttnProblem planned_problem(const AttentionPlan& plan, bool dropout) {
  return attn_problem(plan, {.threshold = dropout}, planned_tables(plan));
}

void plan_naive(AttentionPlan& plan) {
  const AttentionShape& s = plan.shape;
  plan.saved_dtype = plan.dtype;
  plan.saved_shape = {s.batch, s.heads, s.tokens, s.kv_tokens};
  plan.saved_name = "probabilities";
  // The backward needs the gradient of the probabilities for one sequence at a time, and before it, with
  // dropout, those that are kept. So does the forward.
  plan.backward_workspace_bytes = naive_backward_bytes(plan);
  if (plan.dropout) plan.forward_workspace_bytes = naive_matrix_bytes(plan);
  // And of the sinks' gradients, what each row of all sequences adds
  if (s.scores.sinks) plan.backward_workspace_bytes += 4 * s.batch * s.heads * s.tokens;
}

void plan_flash_on_cpu(AttentionPlan& plan, const DeviceTraits& device) {
  const AttentionShape& s = plan.shape;
  check(s.head_dim <= kLargestCpuHeadDim, "flash attention on the CPU serves head dims up to {}, found {}",
        kLargestCpuHeadDim, s.head_dim);
  plan.threads = device.threads;
  const cpu::FlashTile tile;
  plan.forward_workspace_bytes = plan.threads * cpu::FlashForwardScratch(nullptr, tile, s.head_dim).bytes;
  plan.backward_workspace_bytes = plan.threads * cpu::FlashBackwardScratch(nullptr, tile, s.tokens).bytes;
}

void plan_flash(AttentionPlan& plan, const DeviceTraits& device, const char* instead) {
  // A plan with dropout also runs without it, possibly by another family.
  const AttnProblem problem = planned_problem(plan, false), dropping = planned_problem(plan, plan.dropout);
  const AttnStatus status = attn_supports(&dropping, device.arch);
  check(status == ATTN_OK,
        "{} attention cannot run with {}: {}. It serves {}; head dim = channels / heads. {}",
        name_of(plan.kind), request_text(plan, device), attn_status_text(status), attention::what_is_served(),
        instead);
  const auto raise = [](int64_t& most, size_t bytes) { most = std::max(most, static_cast<int64_t>(bytes)); };
  for (const AttnProblem& p : {problem, dropping}) {
    raise(plan.forward_workspace_bytes, attn_forward_workspace(&p, device.arch));
    raise(plan.backward_workspace_bytes, attn_backward_workspace(&p, device.arch));
  }
}

void plan_cudnn(AttentionPlan& plan, const DeviceTraits& device) {
  check(device.device == Device::kCuda,
        "cudnn attention needs a GPU. model.attention=flash and naive run on the CPU, too");
  const AttnProblem problem = planned_problem(plan, plan.dropout);
  const char* refusal = attention::cudnn_refusal(problem, device.arch);
  check(refusal == nullptr, "cudnn attention cannot run with {}: {}. model.attention=flash needs no cuDNN",
        request_text(plan, device), refusal != nullptr ? refusal : "");
  plan.forward_workspace_bytes = attention::cudnn_forward_workspace(problem);
  plan.backward_workspace_bytes =
      attention::cudnn_backward_workspace(problem, attention::cudnn_sums(device.arch, plan.deterministic));
}

void check_choice(const AttentionShape& s) {
  const AttentionMask& m = s.mask;
  const auto& [size, count] = m.choice;
  if (size == 0) return;
  check(attention::is_choice(size, count),
        "queries choose among blocks of a power of two up to {} tokens, and see 1 to {}, found blocks of {} "
        "and {}",
        attention::kLargestChoice, attention::kMostChosen, size, count);
  check(m.causal && m.window == 0 && m.offset >= 0 && m.blocks.size == 0,
        "queries choose blocks with a causal mask, and without a window, a negative offset or sparse blocks; "
        "found "
        "{}",
        to_string(m));
}

void check_mask(const AttentionShape& s) {
  const AttentionMask& m = s.mask;
  check(m.causal || (m.window == 0 && m.offset == 0),
        "attention with a window or an offset needs a causal mask; found window {}, offset {}, not "
        "causal",
        m.window, m.offset);
  constexpr int64_t kMost = attention::kMostTokens;
  check(m.window >= 0 && m.window <= kMost, "the window of attention must be 0 (none) to {}, found {}", kMost,
        m.window);
  check(m.offset >= -kMost && m.offset <= kMost, "the offset of attention must be {} to {}, found {}", -kMost,
        kMost, m.offset);
  check(
      !m.dealt || (m.causal && !m.documents && m.offset == 0),
      "attention of dealt queries needs a causal mask without documents or offset, which are in its tables; "
      "found {}",
      to_string(m));
  check(!m.documents || (m.offset == 0 && s.kv_tokens == s.tokens),
        "attention within documents needs as many keys as queries, and no offset; found {} keys, {} queries, "
        "offset {}",
        s.kv_tokens, s.tokens, m.offset);
  check_choice(s);
  const BlockShape& b = m.blocks;
  if (b.size == 0) return;
  check(
      b.size > 0 && b.lists > 0 && s.kv_heads % b.lists == 0,
      "sparse blocks need a positive size and lists that divide the key/value heads; found size {}, {} lists "
      "and {} heads",
      b.size, b.lists, s.kv_heads);
  check(
      m.offset >= 0 && b.query_blocks * b.size >= m.offset + s.tokens && b.key_blocks * b.size >= s.kv_tokens,
      "lists of sparse blocks must have every block; found {} of queries and {} of keys, of {}, for {} "
      "queries "
      "from {} on and {} keys",
      b.query_blocks, b.key_blocks, b.size, s.tokens, m.offset, s.kv_tokens);
}

}  // namespace

int64_t naive_matrix_bytes(const AttentionPlan& plan) {
  const AttentionShape& s = plan.shape;
  const int64_t bytes = s.heads * s.tokens * s.kv_tokens * static_cast<int64_t>(size_of(plan.dtype));
  return (bytes + 3) / 4 * 4;
}

std::string to_string(const AttentionMask& mask) {
  std::string text = mask.causal ? "causal" : "full";
  if (mask.window > 0) text += fmt::format(", window {}", mask.window);
  if (mask.offset != 0) text += fmt::format(", offset {}", mask.offset);
  if (mask.documents) text += ", within documents";
  if (mask.dealt) text += ", of dealt queries";
  if (mask.choice) text += fmt::format(", {} chosen blocks of {}", mask.choice.count, mask.choice.size);
  if (mask.blocks.size > 0) text += fmt::format(", sparse blocks of {}", mask.blocks.size);
  return text;
}

AttnDtype attn_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ATTN_F32;
    case DType::kBF16:
      return ATTN_BF16;
    case DType::kI32:
    case DType::kU16:
    case DType::kE4M3:
    case DType::kE5M2:
      break;
  }
  fail("attention computes in fp32 or bf16, found {}", name_of(dtype));
}

AttnDropout attn_dropout(const Dropout& dropout) {
  return {.threshold = dropout.threshold,
          .place = dropout.place,
          .first_sequence = dropout.first_sequence,
          .key = dropout.key};
}

AttnProblem attn_problem(const AttentionPlan& plan, const Dropout& dropout, const MaskTables& tables) {
  const AttentionShape& s = plan.shape;
  return {.struct_size = sizeof(AttnProblem),
          .dtype = attn_dtype(plan.dtype),
          .batch = s.batch,
          .tokens = s.tokens,
          .kv_tokens = s.kv_tokens,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = static_cast<int>(s.head_dim),
          .mask = {.causal = s.mask.causal && !s.mask.dealt,
                   .offset = s.mask.offset,
                   .window = s.mask.dealt ? 0 : s.mask.window,
                   .documents = tables.documents.as<int32_t>(),
                   .seen_by = tables.seen_by.as<int32_t>(),
                   .query_tokens = tables.query_tokens.as<int32_t>(),
                   .blocks = s.mask.blocks.at(tables.blocks.as<int32_t>()),
                   .choice = attn_choice(s.mask.choice)},
          .scale = plan.scale,
          .dropout = attn_dropout(dropout),
          .sinks = s.scores.sinks,
          .alibi_heads = static_cast<int>(s.scores.alibi_heads),
          .first_head = static_cast<int>(plan.first_head),
          .score_cap = s.scores.cap,
          .fp8 = plan.kind == AttentionKind::kFlashFp8};
}

attention::Mask mask_of(const AttentionPlan& plan, const MaskTables& tables) {
  return attention::mask_of(attn_problem(plan, {}, tables));
}

attention::Blocks blocks_of(const AttentionPlan& plan, const MaskTables& tables) {
  return attention::blocks_of(attn_problem(plan, {}, tables));
}

MaskTables planned_tables(const AttentionPlan& plan) {
  static int32_t none = 0;
  const auto table = [](bool exists) {
    return Tensor{.data = exists ? &none : nullptr, .dtype = DType::kI32};
  };
  const AttentionMask& mask = plan.shape.mask;
  return {.documents = table(mask.has_tables()),
          .seen_by = table(mask.dealt),
          .query_tokens = table(mask.dealt),
          .blocks = table(mask.blocks.size > 0)};
}

attention::ChoiceWorkspace choice_of(const AttentionPlan& plan, const Tensor& workspace) {
  return {workspace.data, attn_problem(plan, {}, planned_tables(plan))};
}

AttnTensor attn_tensor(const Heads& heads) {
  const View<void> view = heads_of<void>(heads);
  return {.data = view.data, .batch = view.batch, .row = view.row, .head = view.head};
}
AttnTensor attn_tensor(const Tensor& tensor) { return attn_tensor(all_heads(tensor)); }

AttentionPlan choose_attention(const AttentionRequest& request) {
  const AttentionShape& s = request.shape;
  check(s.batch > 0 && s.tokens > 0 && s.heads > 0 && s.head_dim > 0,
        "the sizes of attention must be positive, found batch {}, tokens {}, heads {}, head dim {}", s.batch,
        s.tokens, s.heads, s.head_dim);
  check(s.kv_heads > 0 && s.heads % s.kv_heads == 0,
        "the key/value heads of attention must divide its {} heads, found {}", s.heads, s.kv_heads);
  check(s.kv_tokens > 0, "attention needs keys, found kv_tokens {}", s.kv_tokens);
  check_mask(s);
  AttentionPlan plan;
  plan.kind = request.kind;
  plan.shape = s;
  plan.dtype = request.dtype;
  plan.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  plan.deterministic = request.deterministic;
  plan.dropout = request.dropout;
  plan.arch = request.device.arch;
  plan.saved_dtype = DType::kF32;
  plan.saved_shape = {s.batch, s.heads, s.tokens};
  plan.saved_name = "log-sum-exp";
  switch (request.kind) {
    case AttentionKind::kNaive:
      plan_naive(plan);
      plan_choice(plan);
      return plan;
    case AttentionKind::kFlash:
      if (request.device.device == Device::kCpu) {
        plan_flash_on_cpu(plan, request.device);
        plan_choice(plan);
      } else {
        plan_flash(plan, request.device, "model.attention=naive serves every size");
      }
      return plan;
    case AttentionKind::kFlashFp8:
      check(
          request.device.device == Device::kCuda,
          "flash_fp8 attention needs a GPU of compute capability 9.0. model.attention=flash runs everywhere");
      plan_flash(plan, request.device, "model.attention=flash multiplies in bf16");
      return plan;
    case AttentionKind::kCudnn:
      plan_cudnn(plan, request.device);
      return plan;
  }
  fail("unknown kind of attention, {}", static_cast<int>(request.kind));
}

}  // namespace tessera
