#include "model/kv_cache.h"

#include "kernels/base/check.h"

namespace tessera {
namespace {

int64_t window_of(const ModelConfig& config, int64_t layer) {
  return config.window.at(static_cast<size_t>(layer));
}
int64_t rows_of(const ModelConfig& config, int64_t layer, int64_t capacity) {
  const int64_t window = window_of(config, layer);
  return window == Windows::kFull ? capacity : std::min(window, capacity);
}

// The size of the blocks that queries choose in a cache of `capacity` tokens; 0: they see all tokens
int64_t block_of_choice(const ModelConfig& config, int64_t layer, int64_t capacity) {
  const SparsePattern pattern = config.sparse.at(static_cast<size_t>(layer));
  return pattern.chooses(capacity) ? pattern.block : 0;
}
int64_t means_bytes(const ModelConfig& config, int64_t layer, int64_t capacity) {
  const int64_t block = block_of_choice(config, layer, capacity);
  return block == 0 ? 0 : 4 * config.kv_heads * config.head_dim * ((capacity + block - 1) / block);
}

}  // namespace

KvCache KvCache::slot(int64_t slot) const {
  const auto of_slot = [&](const Tensor& all) {
    if (!all) return Tensor{};
    const Shape& s = all.shape;
    return all.view({slots(), s[1], s[2] * s[3]}).rows(slot, 1).view({1, s[1], s[2], s[3]});
  };
  KvCache one{.layers = {}, .starts = starts.rows(slot, 1), .capacity = capacity};
  for (const Layer& layer : layers)
    one.layers.push_back({.k = of_slot(layer.k),
                          .v = of_slot(layer.v),
                          .ring = layer.ring,
                          .groups = of_slot(layer.groups),
                          .format = layer.format,
                          .means = of_slot(layer.means),
                          .block = layer.block});
  return one;
}

KvCache allocate_kv_cache(Arena& arena, const ModelConfig& config, DType dtype, int64_t slots,
                          int64_t capacity, CacheDtype cache) {
  KvCache made{.layers = {}, .starts = {}, .capacity = capacity};
  const int64_t K = config.kv_heads, D = config.head_dim;
  int64_t with_codes = 0, placed = 0;
  for (int64_t l = 0; l < config.layers; ++l)
    with_codes += keeps_codes(cache, window_of(config, l), capacity);
  if (with_codes > 0) {
    KvCache::Layer& small = made.small;
    small.ring = true;
    small.format = {.dtype = cache, .head_dim = static_cast<int>(D)};
    const Shape ring{with_codes, slots, CacheFormat::kNewestTokens, K, D};
    small.k = arena.alloc(MemoryTag::kCache, "keys of the newest tokens", dtype, ring);
    small.v = arena.alloc(MemoryTag::kCache, "values of the newest tokens", dtype, ring);
    small.groups =
        arena.alloc(MemoryTag::kCache, "codes of keys and values", DType::kI32,
                    {with_codes, slots, K, CacheFormat::groups_of(capacity), small.format.group_words()});
  }
  for (int64_t l = 0; l < config.layers; ++l) {
    if (keeps_codes(cache, window_of(config, l), capacity)) {
      const auto of_layer = [&](const Tensor& all) {
        const Shape& s = all.shape;
        return all.view({s[0], s[1] * s[2], s[3] * s[4]}).rows(placed, 1).view({s[1], s[2], s[3], s[4]});
      };
      KvCache::Layer own = made.small;
      own.k = of_layer(own.k), own.v = of_layer(own.v), own.groups = of_layer(own.groups);
      made.layers.push_back(own);
      ++placed;
      continue;
    }
    const int64_t rows = rows_of(config, l, capacity);
    const Shape shape{slots, rows, K, D};
    made.layers.push_back(
        {.k = arena.alloc(MemoryTag::kCache, fmt::format("keys of block {}", l), dtype, shape),
         .v = arena.alloc(MemoryTag::kCache, fmt::format("values of block {}", l), dtype, shape),
         .ring = rows < capacity});
    if (const int64_t block = block_of_choice(config, l, capacity)) {
      KvCache::Layer& own = made.layers.back();
      own.block = block;
      own.means = arena.alloc(MemoryTag::kCache, fmt::format("means of the keys of block {}", l), DType::kF32,
                              {slots, K, (capacity + block - 1) / block, D});
    }
  }
  made.starts = arena.alloc(MemoryTag::kCache, "tokens in the cache", DType::kI32, {slots});
  return made;
}

int64_t kv_cache_bytes(const ModelConfig& config, DType dtype, int64_t capacity, CacheDtype cache) {
  const CacheFormat format{.dtype = cache, .head_dim = static_cast<int>(config.head_dim)};
  const int64_t of_row = 2 * config.kv_heads * config.head_dim * static_cast<int64_t>(size_of(dtype));
  int64_t bytes = 0;
  for (int64_t l = 0; l < config.layers; ++l)
    bytes += keeps_codes(cache, window_of(config, l), capacity)
                 ? CacheFormat::kNewestTokens * of_row +
                       config.kv_heads * CacheFormat::groups_of(capacity) * format.group_words() * 4
                 : rows_of(config, l, capacity) * of_row + means_bytes(config, l, capacity);
  return bytes;
}

int64_t kv_cache_bytes_read(const ModelConfig& config, DType dtype, int64_t capacity, CacheDtype cache,
                            int64_t tokens) {
  const CacheFormat format{.dtype = cache, .head_dim = static_cast<int>(config.head_dim)};
  const auto element = static_cast<int64_t>(size_of(dtype));
  int64_t bytes = 0;
  for (int64_t l = 0; l < config.layers; ++l)
    bytes += config.kv_heads * (keeps_codes(cache, window_of(config, l), capacity)
                                    ? format.bytes_of(tokens, element)
                                    : rows_of(config, l, tokens) * 2 * config.head_dim * element);
  return bytes;
}

double kv_cache_bytes_of_token(const ModelConfig& config, DType dtype, int64_t capacity, CacheDtype cache) {
  const CacheFormat format{.dtype = cache, .head_dim = static_cast<int>(config.head_dim)};
  double bytes = 0;
  for (int64_t l = 0; l < config.layers; ++l)
    bytes += static_cast<double>(config.kv_heads) *
             (keeps_codes(cache, window_of(config, l), capacity)
                  ? 4.0 * format.group_words() / CacheFormat::kGroupTokens
                  : 2.0 * static_cast<double>(config.head_dim) * static_cast<double>(size_of(dtype)));
  return bytes;
}

CacheDtype checked_cache(CacheDtype cache, DType dtype) {
  const bool fits = cache == CacheDtype::kF32    ? dtype == DType::kF32
                    : cache == CacheDtype::kBF16 ? dtype == DType::kBF16
                                                 : true;
  check(fits,
        "--cache-dtype {} is that of computations in {}, found {}. Use --precision {}, or a cache of auto, "
        "fp8, "
        "int8 or int4",
        name_of(cache), name_of(cache), name_of(dtype), name_of(cache));
  return is_small(cache) ? cache : CacheDtype::kAuto;
}

}  // namespace tessera
