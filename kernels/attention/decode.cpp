#include "kernels/attention/decode.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/family.h"
#include "kernels/attention/mixture.h"
#include "kernels/base/check.h"

namespace tessera {

AttnDecodeProblem attn_decode_problem(const DecodePlan& plan, const Tensor& blocks) {
  const DecodeShape& s = plan.shape;
  return {.struct_size = sizeof(AttnDecodeProblem),
          .dtype = attn_dtype(plan.dtype),
          .batch = s.batch,
          .capacity = s.capacity,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = static_cast<int>(s.head_dim),
          .scale = plan.scale,
          .sinks = s.scores.sinks,
          .alibi_heads = static_cast<int>(s.scores.alibi_heads),
          .score_cap = s.scores.cap,
          .blocks = s.blocks.at(blocks.as<int32_t>())};
}

DecodePlan choose_decode(const DecodeShape& s, DType dtype, const DeviceTraits& device) {
  check(s.batch > 0 && s.heads > 0 && s.head_dim > 0 && s.capacity > 0,
        "the sizes of decode attention must be positive, found batch {}, heads {}, head dim {}, capacity {}",
        s.batch, s.heads, s.head_dim, s.capacity);
  check(s.kv_heads > 0 && s.heads % s.kv_heads == 0,
        "the key/value heads of decode attention must divide its {} heads, found {}", s.heads, s.kv_heads);
  const BlockShape& b = s.blocks;
  check(
      b.size == 0 ||
          (!s.ring && b.lists == 1 && std::min(b.query_blocks, b.key_blocks) * b.size >= s.capacity),
      "decode attention with sparse blocks needs one list of all blocks of a cache that is no ring; found {} "
      "lists of {} blocks of {} for a cache of {} tokens{}",
      b.lists, std::min(b.query_blocks, b.key_blocks), b.size, s.capacity, s.ring ? ", a ring" : "");
  DecodePlan plan{.shape = s,
                  .dtype = dtype,
                  .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
                  .arch = device.arch};
  check(!is_small(s.cache) || (!s.ring && !s.one_cache && s.blocks.size == 0),
        "a cache of {} serves neither a ring of a window nor sparse blocks: use a cache of auto",
        name_of(s.cache));
  check(!s.choice ||
            (!s.ring && !s.one_cache && b.size == 0 && !is_small(s.cache) && s.scores.alibi_heads == 0),
        "decode attention whose queries choose blocks needs a cache of auto of one text, without a window, "
        "sparse "
        "blocks or ALiBi; found a cache of {}{}",
        name_of(s.cache), s.ring ? ", a ring" : "");
  if (device.device == Device::kCpu) return plan;
  const AttnDecodeProblem problem = attn_decode_problem(plan);
  const AttnStatus status = attn_decode_supports(&problem, device.arch);
  check(
      status == ATTN_OK,
      "decode attention cannot run with batch {}, {} heads of {} in {}, {} key/value heads and a cache of {} "
      "tokens on {} (compute capability {}.{}): {}. Head dim = channels / heads. Only drawing tokens needs "
      "it: train with sampling.every=0, or draw on the CPU, which serves every size",
      s.batch, s.heads, s.head_dim, name_of(dtype), s.kv_heads, s.capacity, device.name, device.arch / 10,
      device.arch % 10, attn_status_text(status));
  plan.workspace_bytes = static_cast<int64_t>(attn_decode_workspace(&problem, device.arch));
  if (s.choice)
    plan.workspace_bytes =
        static_cast<int64_t>(attention::mixture::decode_workspace(problem, attn_choice(s.choice)));
  if (!is_small(s.cache)) return plan;
  check(dtype == DType::kBF16,
        "a cache of {} serves computations in bf16 on a GPU, found {}: compute in bf16, or leave the cache "
        "as it "
        "is computed, auto",
        name_of(s.cache), name_of(dtype));
  plan.workspace_bytes = static_cast<int64_t>(attention::decode::kFamily.small_workspace(problem, s.cache));
  return plan;
}

}  // namespace tessera
