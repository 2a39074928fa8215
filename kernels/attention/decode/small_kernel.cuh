// Decode attention over a small cache: the two kernels of kernel.cuh, where a CTA's share is of tiles of
// codes and, at the end of each row, the newest tokens in bf16.
#pragma once

#include "kernels/attention/decode/launch.cuh"
#include "kernels/attention/decode/small_heads.cuh"

namespace tessera::attention::decode {

struct SmallWork : WorkOf<SmallWork> {
  const uint32_t* groups;  // [batch, kv_heads, groups, words]
  int64_t of_sequence, of_head;
  CacheFormat format;
  CodeConstants constants;
  int tiles_of_group, warps;

  __device__ __forceinline__ int own_keys_of(int sequence) const { return plain_keys_of(sequence); }
  __device__ __forceinline__ int own_units_of(int keys) const {
    return small_units_of(keys, tiles_of_group, warps);
  }
};

using SmallArgs = Args<bf16, SmallWork>;  // k and v: rings of the newest tokens

template <class Tile>
struct SmallMemory {
  static constexpr int kWarpBytes = Tile::kSlots * Tile::kSlotBytes;
  static constexpr int kBytes = Tile::kWarps * kWarpBytes;
  static_assert(WarpSums<Tile>::kFloats * 4 <= kBytes && kBytes <= kSharedEverywhere);
  static_assert(Ring<Tile, bf16>::kBytes <= kWarpBytes);
};

// Starts copying a tile of a head's codes with the scales of its group, and closes a group of cp.async.
template <class Tile>
__device__ __forceinline__ void start_codes(const SmallShape& shape, const uint32_t* of_head, int tile,
                                            int end, uint32_t to) {
  constexpr int kTiles = Tile::kFormat.tiles();  // of a group
  const int lane = threadIdx.x % 32;
  if (tile < end) {
    const auto* from = reinterpret_cast<const uint4*>(of_head + int64_t{tile / kTiles} * shape.group_words);
    const int scales = shape.key_scale_bytes / 16, chunks = shape.tile_bytes / 16;
    for (int i = lane; i < scales; i += 32) ptx::cp_async_16(to + i * 16, from + i);
    from += scales + tile % kTiles * chunks, to += shape.key_scale_bytes;
#pragma unroll 4
    for (int i = lane; i < chunks; i += 32) ptx::cp_async_16(to + i * 16, from + i);
  }
  ptx::cp_async_commit();
}

// The keys from token `first` on, which stand in one run of the ring, by 16 for each warp
template <class Tile>
__device__ __forceinline__ void take_newest(const SmallArgs& a, SmallHeads<Tile>& heads, int sequence,
                                            int kv_head, int first, int keys, uint32_t shared,
                                            [[maybe_unused]] const KeyBias<2>& bias) {
  const int warp = threadIdx.x / 32;
  const int begin = first % CacheFormat::kNewestTokens, end = begin + keys, own = begin + warp * Tile::kKeys;
  Ring<Tile, bf16> ring(shared, a.k.one_head(sequence, kv_head), a.v.one_head(sequence, kv_head), a.head_dim,
                        own, end);
#pragma unroll
  for (int slot = 0; slot < Tile::kSlots - 1; ++slot) ring.start(slot);
  int slot = 0;
#pragma unroll 1
  for (int row = own; row < end; row += kUnitKeys<Tile>) {
    ptx::cp_async_wait<Tile::kSlots - 2>();
    __syncwarp();  // the tile has come for all lanes, and all are done with the one before
    ring.start(slot == 0 ? Tile::kSlots - 1 : slot - 1);
    if constexpr (Tile::kGeneral)
      heads.take(ring.k_tile(slot), ring.v_tile(slot), end - row, bias.from(first + row - begin));
    else
      heads.take(ring.k_tile(slot), ring.v_tile(slot), end - row);
    slot = slot + 1 == Tile::kSlots ? 0 : slot + 1;
  }
  ptx::cp_async_wait<0>();
  __syncwarp();  // all lanes are done with the ring, where the next run's tiles come
}

template <class Tile>
__device__ __forceinline__ void attend_small(const SmallArgs& a, int sequence, int row_index, Span units,
                                             int keys, float* part_out, float* part_lse, uint8_t* memory) {
  const RowHeads row(a, row_index);
  const SmallShape shape(a.work.format, a.work.constants);
  const int warp = threadIdx.x / 32, groups = static_cast<int>(CacheFormat::groups_of(keys));
  const int tiles = groups * Tile::kFormat.tiles(), end = min(units.end * Tile::kWarps, tiles);
  const int first = units.begin * Tile::kWarps + warp;
  const uint32_t shared =
      static_cast<uint32_t>(__cvta_generic_to_shared(memory)) + warp * SmallMemory<Tile>::kWarpBytes;
  const uint32_t* of_head = a.work.groups + sequence * a.work.of_sequence + row.kv_head * a.work.of_head;
#pragma unroll
  for (int slot = 0; slot < Tile::kSlots - 1; ++slot)
    start_codes<Tile>(shape, of_head, first + slot * Tile::kWarps, end, shared + slot * Tile::kSlotBytes);
  SmallHeads<Tile> heads(a.q.head_begin(sequence, row.first), a.q.head, row.count, a.head_dim, a.score);
  [[maybe_unused]] KeyBias<2> bias;
  if constexpr (Tile::kGeneral)
    bias = {a.score_cap, a.alibi, row.first + static_cast<int>(threadIdx.x) % 4 * 2, a.work.starts[sequence],
            a.work.capacity};
  int slot = 0;
#pragma unroll 1
  for (int tile = first; tile < end; tile += Tile::kWarps) {
    ptx::cp_async_wait<Tile::kSlots - 2>();
    __syncwarp();  // the tile has come for all lanes, and all are done with the one before
    start_codes<Tile>(shape, of_head, tile + (Tile::kSlots - 1) * Tile::kWarps, end,
                      shared + (slot == 0 ? Tile::kSlots - 1 : slot - 1) * Tile::kSlotBytes);
    if constexpr (Tile::kGeneral)
      heads.take_codes(shape, shared + slot * Tile::kSlotBytes,
                       bias.from(tile * Tile::kFormat.tile_tokens()));
    else
      heads.take_codes(shape, shared + slot * Tile::kSlotBytes);
    slot = slot + 1 == Tile::kSlots ? 0 : slot + 1;
  }
  heads.end_codes();
  ptx::cp_async_wait<0>();
  __syncwarp();  // all lanes are done with the codes, where the newest tokens come
  if (units.end == a.work.units_of(keys)) {
    constexpr int kRun = CacheFormat::kGroupTokens;  // such a run does not cross the ring's end
#pragma unroll 1
    for (int token = groups * kRun; token < keys; token += kRun)
      take_newest(a, heads, sequence, row.kv_head, token, min(keys - token, kRun), shared, bias);
  }
  finish_row<Tile>(a, sequence, row, heads, part_out, part_lse, memory);
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kWarps * 32, Tile::kCtas) small_decode_kernel(const SmallArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();  // after the wait: merge_kernel() reads `starts` at once
  each_row_of_cta(a, [&](int sequence, int row, Span units, int keys, float* part_out, float* part_lse) {
    attend_small<Tile>(a, sequence, row, units, keys, part_out, part_lse, memory);
  });
}

template <class Tile>
AttnStatus launch_small(const SmallDecode& d, CUstream_st* stream) {
  const AttnDecodeProblem& p = d.call.problem;
  constexpr int kBytes = SmallMemory<Tile>::kBytes;
  int resident = 0;
  if (const AttnStatus status = resident_ctas(kBytes, &resident, Tile::kCtas); status != ATTN_OK)
    return status;
  const CacheFormat format{.dtype = d.dtype, .head_dim = p.head_dim};
  const int64_t of_head = CacheFormat::groups_of(p.capacity) * format.group_words();
  SmallWork work = {};
  work.ctas = static_cast<int>(std::min({int64_t{resident}, kMostSmallCtas, most_small_units(p, d.dtype)}));
  work.groups = static_cast<const uint32_t*>(d.groups);
  work.of_sequence = p.kv_heads * of_head, work.of_head = of_head;
  work.format = format, work.tiles_of_group = format.tiles(), work.warps = Tile::kWarps;
  return launch_with_merge<Tile, bf16, SmallWork>(
      {.kernel = small_decode_kernel<Tile>,
       .shared_bytes = kBytes,
       .work = work,
       .workspace = small_workspace(d.call.workspace, p, d.dtype)},
      d.call, stream);
}

// The kernels of the problem's width, and those for sinks, a bias or a cap where it has any
template <CacheDtype kDtype>
AttnStatus launch_small_of(const SmallDecode& d, CUstream_st* stream) {
  const AttnDecodeProblem& p = d.call.problem;
  const auto launch = [&]<int kWidth>() {
    return p.sinks != 0 || p.alibi_heads != 0 || p.score_cap != 0
               ? launch_small<SmallTile<kDtype, kWidth, true>>(d, stream)
               : launch_small<SmallTile<kDtype, kWidth, false>>(d, stream);
  };
  switch (small_tile_width(p.head_dim)) {
    case 64:
      return launch.template operator()<64>();
    case 128:
      return launch.template operator()<128>();
  }
  return launch.template operator()<256>();
}

}  // namespace tessera::attention::decode
