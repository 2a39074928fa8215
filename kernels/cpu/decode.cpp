// The cache of keys and values, and attention of one new token over it.
#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/attention/blocks.h"
#include "kernels/base/check.h"
#include "kernels/cpu/choose_blocks.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/score_rule.h"
#include "kernels/cpu/small_cache.h"
#include "kernels/cpu/streaming_softmax.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kHeads = 8;   // of queries, that a task has at most
constexpr int64_t kKeys = 128;  // of a tile

// A tile of keys and values that follow one another
struct Tile {
  const float *k, *v;
  int64_t k_row, v_row;  // elements from one to the next
  int64_t row, count;    // of the cache; of a small one, of the text
};

// visit(first row, rows) for the tiles of what a query at `start` sees of `keys` rows
template <class Visit>
void each_run(const attention::Blocks& blocks, int start, int64_t keys, const Visit& visit) {
  const auto tiles_of = [&](int64_t begin, int64_t end) {
    for (int64_t tile = begin; tile < end; tile += kKeys) visit(tile, std::min(kKeys, end - tile));
  };
  if (!blocks || start < 0) return tiles_of(0, keys);
  const attention::BlockList seen = blocks.keys_of(0, start / blocks.size);
  for (int place = 0; place < seen.count && int64_t{seen[place]} * blocks.size < keys; ++place)
    tiles_of(int64_t{seen[place]} * blocks.size, std::min((int64_t{seen[place]} + 1) * blocks.size, keys));
}

// visit(tile) for a head of keys and values of a small cache that has `keys` of sequence b
template <class Visit>
void each_small_tile(const DecodeAttention& a, int64_t b, int64_t kv_head, int64_t keys, const Visit& visit) {
  constexpr int64_t kTokens = CacheFormat::kGroupTokens, kRing = CacheFormat::kNewestTokens;
  const View<const float> k = heads_of<const float>(a.k_cache, kv_head),
                          v = heads_of<const float>(a.v_cache, kv_head);
  const CacheFormat format = a.plan.shape.format();
  const int64_t D = format.head_dim, groups = CacheFormat::groups_of(keys);
  const int64_t of_head = a.groups.shape[2] * a.groups.shape[3];
  const uint32_t* group = a.groups.as<uint32_t>() + (b * a.groups.shape[1] + kv_head) * of_head;
  std::vector<float> widened(static_cast<size_t>(groups > 0 ? 2 * kTokens * D : 0));
  float *of_k = widened.data(), *of_v = of_k + widened.size() / 2;
  for (int64_t g = 0; g < groups; ++g, group += format.group_words()) {
    widen_group(format, group, of_k, of_v, D);
    visit(Tile{of_k, of_v, D, D, g * kTokens, kTokens});
  }
  for (int64_t token = groups * kTokens; token < keys; token += kTokens) {
    const int64_t row = token % kRing;
    visit(Tile{k.head_begin(b, 0) + row * k.row, v.head_begin(b, 0) + row * v.row, k.row, v.row, token,
               std::min(kTokens, keys - token)});
  }
}

// Calls visit(first row, rows) for the tiles of the blocks that query head `head` of sequence b sees.
template <class Visit>
void each_chosen_run(const DecodeAttention& a, int64_t b, int64_t head, int64_t keys, const Visit& visit) {
  const DecodeShape& s = a.plan.shape;
  const auto& [size, count] = s.choice;
  const auto whole = static_cast<int>((keys - 1) / size), others = static_cast<int>(count) - 1;
  int32_t chosen[attention::kMostChosen];
  choose_slots(
      heads_of<const float>(a.q).head_begin(b, head),
      a.means.as<float>() + (b * s.kv_heads + head / (s.heads / s.kv_heads)) * s.slots() * s.head_dim,
      s.head_dim, 0, whole, others, chosen);
  chosen[others] = whole;
  for (int i = 0; i <= others; ++i) {
    if (chosen[i] < 0) continue;
    const int64_t end = std::min((chosen[i] + 1) * size, keys);
    for (int64_t tile = chosen[i] * size; tile < end; tile += kKeys) visit(tile, std::min(kKeys, end - tile));
  }
}

// Calls visit(tile) for the keys and values of head `kv_head` that query head `head` of sequence b sees,
// among the first `keys`. Without a choice, the other query heads that read `kv_head` see the same.
template <class Visit>
void each_tile(const DecodeAttention& a, int64_t b, int64_t head, int64_t kv_head, int64_t keys,
               const Visit& visit) {
  const DecodeShape& s = a.plan.shape;
  if (is_small(s.cache)) return each_small_tile(a, b, kv_head, keys, visit);
  const View<const float> k = heads_of<const float>(a.k_cache, kv_head),
                          v = heads_of<const float>(a.v_cache, kv_head);
  const int64_t of_cache = s.one_cache ? 0 : b;
  const auto visit_rows = [&](int64_t row, int64_t count) {
    visit(Tile{k.head_begin(of_cache, 0) + row * k.row, v.head_begin(of_cache, 0) + row * v.row, k.row, v.row,
               row, count});
  };
  if (s.choice && keys > 0) return each_chosen_run(a, b, head, keys, visit_rows);
  each_run(attention::blocks_of(attn_decode_problem(a.plan, a.blocks)), a.starts.as<int32_t>()[b], keys,
           visit_rows);
}

// Query heads `first` on of sequence b, all of which read one head of keys and values
void attend(const DecodeAttention& a, int64_t b, int64_t kv_head, int64_t first, int64_t heads) {
  const DecodeShape& s = a.plan.shape;
  const AttnDecodeProblem problem = attn_decode_problem(a.plan, a.blocks);
  const int start = a.starts.as<int32_t>()[b];
  const int64_t D = s.head_dim, keys = std::min(int64_t{start} + 1, s.capacity);
  const View<const float> q = heads_of<const float>(a.q);
  float* outputs = a.y.as<float>() + (b * s.heads + first) * D;
  std::fill_n(outputs, heads * D, 0.0f);
  StreamingSoftmax softmax[kHeads];
  float scores[kKeys];
  each_tile(a, b, first, kv_head, keys, [&](const Tile& tile) {
    const int64_t count = tile.count;
    for (int64_t h = 0; h < heads; ++h) {
      const float* query = q.head_begin(b, first + h);
      const ScoreRule rule = ScoreRule::of_head(problem, first + h);
      float* y = outputs + h * D;
      for (int64_t j = 0; j < count; ++j) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < D; ++d) sum += query[d] * tile.k[j * tile.k_row + d];
        scores[j] = rule.value(sum, start, attention::token_of_row(tile.row + j, start, s.capacity));
      }
      const float rescale = softmax[h].absorb(scores, count);
      for (int64_t d = 0; d < D; ++d) y[d] *= rescale;
      for (int64_t j = 0; j < count; ++j) {
        const float p = scores[j];
#pragma omp simd
        for (int64_t d = 0; d < D; ++d) y[d] += p * tile.v[j * tile.v_row + d];
      }
    }
  });
  for (int64_t h = 0; h < heads; ++h) {
    const float of_sink = a.sinks ? softmax[h].absorb_sink(a.sinks.as<float>()[first + h]) : 1.0f;
    for (int64_t d = 0; d < D; ++d) outputs[h * D + d] *= softmax[h].inverse_sum() * of_sink;
  }
}

}  // namespace

namespace {

// Writes the mean keys of the blocks that the tokens start to end - 1 of sequence b complete.
void complete_means(const CacheAppend& a, int64_t b, int64_t start, int64_t end) {
  const int64_t K = a.k_cache.shape[2], D = a.k_cache.shape[3], slots = a.means.shape[2];
  const View<const float> k = heads_of<const float>(a.k_cache);
  for (int64_t slot = start / a.block; (slot + 1) * a.block <= end; ++slot)
    for (int64_t head = 0; head < K; ++head)
      mean_of_keys(k.one_head(b, head), slot * a.block, a.block, D,
                   a.means.as<float>() + ((b * K + head) * slots + slot) * D);
}

}  // namespace

void run(const CacheAppend& a, const Launch& /*on*/) {
  const int64_t B = a.k_cache.shape[0], capacity = a.k_cache.shape[1],
                row = a.k_cache.shape[2] * a.k_cache.shape[3];
  const int64_t T = a.k.tensor.shape[1];
  const View<const float> k = heads_of<const float>(a.k), v = heads_of<const float>(a.v);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t start = a.starts.as<int32_t>()[b];
    if (start < 0) continue;
    check(a.ring || start + T <= capacity, "{}: {} tokens after {} are more than the cache has room for, {}",
          a.kName, T, start, capacity);
    for (int64_t t = 0; t < T; ++t) {
      const int64_t to = (b * capacity + (start + t) % capacity) * row;
      std::memcpy(a.k_cache.as<float>() + to, k.head_begin(b, 0) + t * k.row, static_cast<size_t>(row) * 4);
      std::memcpy(a.v_cache.as<float>() + to, v.head_begin(b, 0) + t * v.row, static_cast<size_t>(row) * 4);
    }
    if (a.means) complete_means(a, b, start, start + T);
  }
}

void run(const RotaryAppend& a, const Launch& on) {
  run(a.rotary, on);
  run(a.append, on);
}

// Heads are taken a few at a time that read the same keys: a tile of keys and values, which fits a core's
// cache, goes past all of them before the next.
void run(const DecodeAttention& a, const Launch& /*on*/) {
  const DecodeShape& s = a.plan.shape;
  // Heads that choose blocks see different keys, so each is computed by itself.
  const int64_t group = s.heads / s.kv_heads, at_once = s.choice ? 1 : kHeads,
                parts = (group + at_once - 1) / at_once;
  for (int64_t b = 0; b < s.batch; ++b)
    check(s.ring || a.starts.as<int32_t>()[b] < s.capacity,
          "{}: sequence {} has a token at {}, and the cache room for {}", a.kName, b,
          a.starts.as<int32_t>()[b], s.capacity);
#pragma omp parallel for collapse(3) schedule(dynamic)
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t kv_head = 0; kv_head < s.kv_heads; ++kv_head)
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t first = part * at_once;
        attend(a, b, kv_head, kv_head * group + first, std::min(at_once, group - first));
      }
}

void run(const FusedDecodeStep& a, const Launch& on) {
  for (const DecodeOp& op : a.operations) op.each_plain([&](const auto& one) { run(one, on); });
}

}  // namespace tessera::cpu
