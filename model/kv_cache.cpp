#include "model/kv_cache.h"

namespace tessera {
namespace {

int64_t rows_of(const ModelConfig& config, int64_t layer, int64_t capacity) {
  const int64_t window = config.window.at(static_cast<size_t>(layer));
  return window == Windows::kFull ? capacity : std::min(window, capacity);
}

}  // namespace

KvCache KvCache::slot(int64_t slot) const {
  const auto of_slot = [&](const Tensor& all) {
    const int64_t rows = all.shape[1], K = all.shape[2], D = all.shape[3];
    return all.view({slots(), rows, K * D}).rows(slot, 1).view({1, rows, K, D});
  };
  KvCache one{.layers = {}, .starts = starts.rows(slot, 1), .capacity = capacity};
  for (const Layer& layer : layers)
    one.layers.push_back({.k = of_slot(layer.k), .v = of_slot(layer.v), .ring = layer.ring});
  return one;
}

KvCache allocate_kv_cache(Arena& arena, const ModelConfig& config, DType dtype, int64_t slots,
                          int64_t capacity) {
  KvCache cache{.layers = {}, .starts = {}, .capacity = capacity};
  for (int64_t l = 0; l < config.layers; ++l) {
    const int64_t rows = rows_of(config, l, capacity);
    const Shape shape{slots, rows, config.kv_heads, config.head_dim};
    cache.layers.push_back(
        {.k = arena.alloc(MemoryTag::kCache, fmt::format("keys of block {}", l), dtype, shape),
         .v = arena.alloc(MemoryTag::kCache, fmt::format("values of block {}", l), dtype, shape),
         .ring = rows < capacity});
  }
  cache.starts = arena.alloc(MemoryTag::kCache, "tokens in the cache", DType::kI32, {slots});
  return cache;
}

int64_t kv_cache_bytes(const ModelConfig& config, DType dtype, int64_t tokens) {
  int64_t rows = 0;
  for (int64_t l = 0; l < config.layers; ++l) rows += rows_of(config, l, tokens);
  return 2 * rows * config.kv_heads * config.head_dim * static_cast<int64_t>(size_of(dtype));
}

}  // namespace tessera
