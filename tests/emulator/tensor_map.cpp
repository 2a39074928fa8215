#include "tests/emulator/tensor_map.h"

#include <algorithm>
#include <cstring>

#include "tests/emulator/races.h"

namespace emulator {
namespace {

constexpr uint32_t kBytes = 2, kRowBytes = 128, kChunk = 16;

struct Map {
  uint8_t* data;
  uint32_t rank;
  std::array<uint64_t, 5> sizes, strides;  // strides in bytes
  std::array<uint32_t, 5> extents;
};
static_assert(sizeof(Map) <= sizeof(CUtensorMap));

Map map_of(const CUtensorMap& encoded) {
  Map map;
  std::memcpy(&map, &encoded, sizeof map);
  return map;
}

// f(element of the box in shared memory, element of the tensor or null, bytes of the tensor from there on in
// its row)
template <class F>
void for_each(const Map& map, uint8_t* shared, const Coordinates& at, F f) {
  uint32_t count = 1;
  for (uint32_t d = 0; d < map.rank; ++d) count *= map.extents[d];
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t* element = map.data;
    bool inside = true;
    for (uint32_t d = 0, rest = i; d < map.rank; rest /= map.extents[d], ++d) {
      const int64_t c = at[d] + int64_t{rest % map.extents[d]};
      inside = inside && c >= 0 && c < static_cast<int64_t>(map.sizes[d]);
      element += c * static_cast<int64_t>(map.strides[d]);
    }
    const auto left = (static_cast<int64_t>(map.sizes[0]) - at[0] - i % map.extents[0]) * kBytes;
    const auto offset = reinterpret_cast<uintptr_t>(shared) + i * kBytes, row = offset / kRowBytes % 8;
    f(reinterpret_cast<uint8_t*>(offset ^ row * kChunk), inside ? element : nullptr, left);
  }
}

bool is_chunk(const uint8_t* shared) { return reinterpret_cast<uintptr_t>(shared) % kChunk == 0; }
size_t bytes_of_chunk(int64_t left) { return std::min(static_cast<size_t>(left), size_t{kChunk}); }

}  // namespace

CUresult encode_tensor_map(CUtensorMap* encoded, CUtensorMapDataType type, cuuint32_t rank, void* data,
                           const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* extents,
                           const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  Map map{.data = static_cast<uint8_t*>(data), .rank = rank, .sizes = {}, .strides = {kBytes}, .extents = {}};
  bool valid = type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
               rank >= 2 && rank <= 5 && reinterpret_cast<uintptr_t>(data) % 16 == 0 &&
               extents[0] * kBytes == kRowBytes;
  for (uint32_t d = 0; valid && d < rank; ++d) {
    map.sizes[d] = sizes[d];
    map.extents[d] = extents[d];
    if (d > 0) map.strides[d] = strides[d - 1];
    valid = sizes[d] > 0 && extents[d] > 0 && extents[d] <= 256 && (d == 0 || strides[d - 1] % 16 == 0);
  }
  std::memset(encoded, 0, sizeof *encoded);
  std::memcpy(encoded, &map, sizeof map);
  return valid ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void load_box(void* shared, const CUtensorMap& encoded, const Coordinates& at) {
  for_each(map_of(encoded), static_cast<uint8_t*>(shared), at, [](uint8_t* to, uint8_t* from, int64_t left) {
    if (is_chunk(to)) {
      writes(to, kChunk);
      if (from) reads(from, bytes_of_chunk(left));
    }
    from ? std::memcpy(to, from, kBytes) : std::memset(to, 0, kBytes);
  });
}

void store_box(const CUtensorMap& encoded, const void* shared, const Coordinates& at) {
  for_each(map_of(encoded), static_cast<uint8_t*>(const_cast<void*>(shared)), at,
           [](uint8_t* from, uint8_t* to, int64_t left) {
             if (!to) return;
             if (is_chunk(from)) reads(from, kChunk), writes(to, bytes_of_chunk(left));
             std::memcpy(to, from, kBytes);
           });
}

uint32_t bytes_of_box(const CUtensorMap& encoded) {
  const Map map = map_of(encoded);
  uint32_t bytes = kBytes;
  for (uint32_t d = 0; d < map.rank; ++d) bytes *= map.extents[d];
  return bytes;
}

}  // namespace emulator
