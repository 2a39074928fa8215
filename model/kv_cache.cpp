#include "model/kv_cache.h"

namespace tessera {

KvCache KvCache::slot(int64_t slot) const {
  const auto of_slot = [&](const Tensor& all) {
    const int64_t K = all.shape[2], D = all.shape[3];
    return all.view({slots(), capacity(), K * D}).rows(slot, 1).view({1, capacity(), K, D});
  };
  KvCache one{.layers = {}, .starts = starts.rows(slot, 1)};
  for (const Layer& layer : layers) one.layers.push_back({of_slot(layer.k), of_slot(layer.v)});
  return one;
}

KvCache allocate_kv_cache(Arena& arena, const ModelConfig& config, DType dtype, int64_t slots,
                          int64_t capacity) {
  const Shape shape{slots, capacity, config.kv_heads, config.head_dim};
  KvCache cache;
  for (int64_t l = 0; l < config.layers; ++l)
    cache.layers.push_back(
        {arena.alloc(MemoryTag::kCache, fmt::format("keys of block {}", l), dtype, shape),
         arena.alloc(MemoryTag::kCache, fmt::format("values of block {}", l), dtype, shape)});
  cache.starts = arena.alloc(MemoryTag::kCache, "tokens in the cache", DType::kI32, {slots});
  return cache;
}

int64_t kv_cache_bytes_per_token(const ModelConfig& config, DType dtype) {
  return 2 * config.layers * config.kv_heads * config.head_dim * static_cast<int64_t>(size_of(dtype));
}

}  // namespace tessera
