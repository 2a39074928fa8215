#include "kernels/decode_ops.h"

#include "kernels/base/check.h"
#include "kernels/op_checks.h"

namespace tessera {

void FusedLinear::check_on(Device device) const {
  check_anchor(kName, "x", x, 2, device);
  check_anchor(kName, "weight", weight, 2, device);
  check_anchor(kName, "y", y, 2, device);
  const int64_t N = x.shape[0], C = x.shape[1], O = y.shape[1];
  const int64_t rows = activation == Epilogue::kSwiglu ? 2 * O : O;
  const DType t = x.dtype;
  check_fields(kName, device,
               {{"weight", weight, t, {rows, C}},
                {"y", y, t, {N, O}},
                {"bias", bias, t, {rows}, true},
                {"add", add, t, {N, O}, true},
                {"norm_weight", norm_weight, t, {C}, true},
                {"norm_bias", norm_bias, t, {C}, true},
                {"normed", normed, t, {N, C}, !norm_weight},
                {"mean", mean, DType::kF32, {N}, !norm_bias},
                {"rstd", rstd, DType::kF32, {N}, !norm_weight},
                {"sums", sums, t, {N, rows}, activation == Epilogue::kNone}});
  check(norm_weight || !norm_bias, "{}: norm_bias needs a norm_weight beside it, found none", kName);
  check(!norm_weight || epsilon > 0, "{}: epsilon must be a number above 0, found {}", kName, epsilon);
  check(!add || activation == Epilogue::kNone, "{}: add and activation exclude each other", kName);
  check(!x.data || x.data != y.data, "{}: x is read while y is written", kName);
}

void CacheAppend::check_on(Device device) const {
  check_anchor(kName, "k_cache", k_cache, 4, device);
  const Shape& cache = k_cache.shape;  // [B, capacity, K, D]
  check_anchor(kName, "k", k.tensor, 4, device);
  if (k.tensor.shape[0] != cache[0] || k.tensor.shape[3] != cache[3])
    fail("{}: k must be [{}, T, heads, {}], found {}", kName, cache[0], cache[3], k.tensor.to_string());
  check_range(kName, "k", k, cache[2]);
  check_heads(kName, "v", v, k, device);
  check_fields(kName, device,
               {{"k", k.tensor, k_cache.dtype, k.tensor.shape},
                {"v_cache", v_cache, k_cache.dtype, cache},
                {"starts", starts, DType::kI32, {cache[0]}}});
  check(k.tensor.shape[1] <= cache[1], "{}: {} new tokens are more than the cache has room for, {}", kName,
        k.tensor.shape[1], cache[1]);
  if (means) {
    check(block > 0 && !ring, "{}: means need blocks of a positive size, and no ring, found {}", kName,
          block);
    check_fields(
        kName, device,
        {{"means", means, DType::kF32, {cache[0], cache[2], (cache[1] + block - 1) / block, cache[3]}}});
  }
  check(!ring || k.tensor.shape[1] == 1, "{}: a ring takes one new token at a time, found {}", kName,
        k.tensor.shape[1]);
}

void RotaryAppend::check_on(Device device) const {
  rotary.check_on(device);
  append.check_on(device);
  const Heads &y = rotary.y, &k = append.k;
  if (k.tensor.data != y.tensor.data || k.tensor.shape != y.tensor.shape ||
      k.first != y.first + rotary.query_heads || k.count != y.count - rotary.query_heads)
    fail("{}: append.k must be the keys of rotary.y, found {} heads from {} on of {}", kName, k.count,
         k.first, k.tensor.to_string());
  check(append.starts.data == rotary.starts.data, "{}: rotary and append must have the same starts", kName);
}

namespace {

// Whole groups of words
void check_groups(const char* op, const CacheFormat& format, const Tensor& groups, int rank) {
  check(is_small(format.dtype) && format.head_dim > 0, "{}: a cache of {} has no codes", op,
        name_of(format.dtype));
  check(
      groups.shape.rank() == rank && groups.dtype == DType::kI32 && groups.shape[-1] == format.group_words(),
      "{}: groups of {} codes for heads of {} have {} words of int32 in {} dimensions, found {}", op,
      name_of(format.dtype), format.head_dim, format.group_words(), rank, groups.to_string());
}

}  // namespace

void QuantiseCache::check_on(Device device) const {
  check_anchor(kName, "k", k, 5, device);
  check_groups(kName, format, groups, 5);
  const int64_t L = k.shape[0], B = k.shape[1], rows = k.shape[2], K = k.shape[3], G = groups.shape[3];
  check_fields(kName, device,
               {{"k", k, k.dtype, {L, B, rows, K, format.head_dim}},
                {"v", v, k.dtype, k.shape},
                {"groups", groups, DType::kI32, {L, B, K, G, groups.shape[4]}}});
  if (starts) {
    check_fields(kName, device, {{"starts", starts, DType::kI32, {B}}});
    check(rows == CacheFormat::kNewestTokens, "{}: the ring of the newest tokens has {} rows, found {}",
          kName, CacheFormat::kNewestTokens, rows);
  } else {
    check(first >= 0 && count >= 0 && first + count <= G, "{}: the groups {} to {} of {}", kName, first,
          first + count, G);
  }
}

void DequantiseCache::check_on(Device device) const {
  check_anchor(kName, "k", k, 3, device);
  check_groups(kName, format, groups, 3);
  check_fields(
      kName, device,
      {{"k", k, k.dtype, {k.shape[0], groups.shape[0], format.head_dim}}, {"v", v, k.dtype, k.shape}});
  check(count >= 0 && count <= groups.shape[1] && count * CacheFormat::kGroupTokens <= k.shape[0],
        "{}: {} groups of {}, to {} rows", kName, count, groups.shape[1], k.shape[0]);
}

void DecodeAttention::check_on(Device device) const {
  const DecodeShape& s = plan.shape;
  const Shape cache{s.one_cache ? 1 : s.batch, s.cache_rows(), s.kv_heads, s.head_dim};
  check_anchor(kName, "q", q.tensor, 4, device);
  check_fields(kName, device,
               {{"q", q.tensor, plan.dtype, {s.batch, 1, q.tensor.shape[2], s.head_dim}},
                {"k_cache", k_cache, plan.dtype, cache},
                {"v_cache", v_cache, plan.dtype, cache},
                {"starts", starts, DType::kI32, {s.batch}},
                {"y", y, plan.dtype, {s.batch, 1, s.heads, s.head_dim}}});
  check_range(kName, "q", q, s.heads);
  check_scratch(kName, workspace, plan.workspace_bytes, device);
  check_sinks(kName, device, {"sinks", sinks, plan.dtype, {s.heads}}, s.scores.sinks);
  if (s.blocks.size > 0)
    check_fields(kName, device, {{"blocks", blocks, DType::kI32, {s.blocks.numbers()}}});
  else
    check(!blocks, "{}: blocks needs a plan of sparse blocks, found {}", kName, blocks.to_string());
  if (s.choice)
    check_fields(kName, device,
                 {{"means", means, DType::kF32, {s.batch, s.kv_heads, s.slots(), s.head_dim}}});
  if (!is_small(s.cache)) return;
  check_fields(kName, device,
               {{"groups",
                 groups,
                 DType::kI32,
                 {s.batch, s.kv_heads, CacheFormat::groups_of(s.capacity), s.format().group_words()}}});
}

void CachedAttention::check_on(Device device) const {
  each_plain([&](const auto& op) { op.check_on(device); });
}

void FusedDecodeStep::check_on(Device device) const {
  for (const DecodeOp& op : operations) op.each_plain([&](const auto& one) { one.check_on(device); });
  if (memory && memory.device != device)
    fail("{}: memory must be a tensor on {}, found {}", kName, name_of(device), memory.to_string());
}

void SampleTokens::check_on(Device device) const {
  check_anchor(kName, "logits", logits, 2, device);
  const int64_t B = logits.shape[0];
  if (vocab_size <= 0 || vocab_size > logits.shape[1])
    fail("{}: vocab_size {} does not fit logits {}", kName, vocab_size, logits.to_string());
  check_fields(kName, device,
               {{"seen", seen, DType::kI32, {B, (vocab_size + 31) / 32}},
                {"draws", draws, DType::kI32, {B, 2}},
                {"starts", starts, DType::kI32, {B}},
                {"tokens", tokens, DType::kI32, {B}}});
  check(rule.temperature >= 0 && rule.top_k >= 0 && rule.top_p > 0 && rule.top_p <= 1 && rule.min_p >= 0 &&
            rule.min_p <= 1 && rule.repetition_penalty > 0,
        "{}: rule must have a temperature and top_k of at least 0, top_p above 0 to 1, min_p 0 to 1 and a "
        "repetition_penalty above 0, found {}, {}, {}, {} and {}",
        kName, rule.temperature, rule.top_k, rule.top_p, rule.min_p, rule.repetition_penalty);
}

}  // namespace tessera
