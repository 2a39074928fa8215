// The weight-gradient GEMM: d[M, N] = a^T b, or + e, with a stored as [K, M] and b as [K, N]. K counts
// tokens. In bf16; sums are fp32 and a result is rounded once.
//
// There are fewer tiles than a GPU has multiprocessors, or a few more, but long sums. So K is split
// (split.h), and two kernels follow one another:
//   weight_gradient_kernel  Clusters of two CTAs compute their pieces, [256, 256] of some steps of K. A CTA
//                           has [128, 256]. One warpgroup loads 64 of K into a slot: a's [64, 128], and half
//                           of b's [64, 256], which goes to both CTAs. Two multiply, 64 rows of d each
//                           (wgmma, both operands transposed). A piece with all of K is stored as d. The
//                           sums of another go to memory as they lie in the threads: partial sums.
//   add_partials_kernel     adds the partial sums of a tile in their order. Same arguments, same bits.
//
// The gradient of a bias is the sum of a over K. Two warps that have nothing else to do read a slot of a
// before it is released, in turn with the CTAs that have the same rows of d.
#include <cuda_bf16.h>

#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/multiply.cuh"
#include "kernels/gemm/sm90/problem.h"
#include "kernels/gemm/sm90/split.h"
#include "kernels/hopper/cluster_launch.h"
#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/tensor_map.h"
#include "kernels/hopper/tile.cuh"

namespace tessera::gemm {
namespace {

using namespace hopper;
using ptx::Major;

constexpr int kCluster = 2, kConsumers = 2;
constexpr int kRows = kConsumers * kWarpgroupRows, kColumns = 256;  // of d, of a CTA
constexpr int kTileRows = kCluster * kRows, kTileColumns = kColumns;
constexpr int kBlockK = 64, kSlots = 4;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
constexpr int kSummers = kRows / kPanel;  // warps that sum a's columns, each a panel's
using TileA = Tile<kBlockK, kRows>;
using TileB = Tile<kBlockK, kColumns>;
constexpr int kSlotBytes = TileA::kBytes + TileB::kBytes;
constexpr int kSharedBytes = kSlots * kSlotBytes + Ring<kSlots>::kBytes;
static_assert(kSharedBytes <= kSharedBytesOfCta);

// A thread's sums, in fours: two rows of the columns c and c + 1
constexpr int kFours = kColumns / 8;
using Sums = float[4 * kFours];
__device__ __forceinline__ float4 four_of(const Sums& d, int i) {
  return {d[4 * i], d[4 * i + 1], d[4 * i + 2], d[4 * i + 3]};
}
constexpr int kFoursOfPartial = kCluster * kConsumers * kFours * kWarpgroup;
static_assert(kTileRows == kWeightGradientTile && kTileColumns == kWeightGradientTile);
constexpr int64_t kSumsFrom = kMostPartials * kWeightGradientTile * kWeightGradientTile;  // in floats

struct Arguments {
  CUtensorMap a, b;
  Split split;
  float4* partials;        // [partial, strip of 64 rows, four, thread of a warpgroup]
  float* sums_partials;    // [partial, then whole tile; row of the tile]
  __nv_bfloat16* sums;     // [summed]
  __nv_bfloat16* d;        // [m, n], d_ld from one row to the next
  const __nv_bfloat16* e;  // the same, e_ld, or none
  int64_t d_ld, e_ld;
  int m, n, row_tiles, column_tiles, summed;
};

struct TilePlace {
  int row, column;
};
// Tiles that follow one another are those of the fewer panels.
__device__ __forceinline__ bool goes_down(const Arguments& args) {
  return args.row_tiles < args.column_tiles;
}
__device__ __forceinline__ TilePlace place_of(const Arguments& args, int tile) {
  const int across = goes_down(args) ? args.row_tiles : args.column_tiles, first = tile / across,
            second = tile % across;
  return {(goes_down(args) ? second : first) * kTileRows, (goes_down(args) ? first : second) * kTileColumns};
}
__device__ __forceinline__ int tile_at(const Arguments& args, int row, int column) {
  return goes_down(args) ? column * args.row_tiles + row : row * args.column_tiles + column;
}

struct Memory {
  uint32_t base;

  __device__ __forceinline__ TileA a(int slot) const { return {base + slot * kSlotBytes}; }
  __device__ __forceinline__ TileB b(int slot) const { return {a(slot).base + TileA::kBytes}; }
  __device__ __forceinline__ Ring<kSlots> ring() const { return {base + kSlots * kSlotBytes}; }
};

// Where the sums of a over a piece go
__device__ __forceinline__ float* sums_of(const Arguments& args, int tile, int partial) {
  return args.sums_partials + (partial == Piece::kNoPartial ? kMostPartials + tile : partial) * kTileRows;
}

// By one thread
__device__ __forceinline__ void load(const Memory& memory, const Arguments& args, int worker, uint32_t rank) {
  constexpr uint16_t kAll = (1 << kCluster) - 1;
  constexpr int kPanelsOfB = kColumns / kPanel / kCluster;  // that this CTA loads
  const Ring<kSlots> ring = memory.ring();
  const int own = static_cast<int>(rank);
  RingPlace<kSlots> at;
  for (Split::PiecesOf pieces(args.split, worker); pieces.next();) {
    const Piece piece = pieces.piece();
    const TilePlace tile = place_of(args, piece.tile);
    for (int step = piece.begin; step < piece.end; ++step, at.next()) {
      const uint32_t full = ring.begin_fill(at, kSlotBytes);
      const int k = step * kBlockK;
#pragma unroll
      for (int panel = 0; panel < kRows / kPanel; ++panel)
        ptx::load_box(memory.a(at.slot).base + panel * TileA::kPanelBytes, args.a, full,
                      tile.row + own * kRows + panel * kPanel, k);
#pragma unroll
      for (int j = 0; j < kPanelsOfB; ++j) {
        const int panel = own * kPanelsOfB + j;
        ptx::load_box_to(kAll, memory.b(at.slot).base + panel * TileB::kPanelBytes, args.b, full,
                         tile.column + panel * kPanel, k);
      }
    }
  }
}

// By a warp: sums of a panel's columns. Eight lanes have a row, eight columns each.
__device__ __forceinline__ void sum(const Memory& memory, const Arguments& args, int worker, uint32_t rank,
                                    int panel) {
  constexpr int kLanes = 8, kRowsAtOnce = 32 / kLanes;
  const Ring<kSlots> ring = memory.ring();
  const int lane = threadIdx.x % 32, chunk = lane % kLanes;
  RingPlace<kSlots> at;
  for (Split::PiecesOf pieces(args.split, worker); pieces.next();) {
    const Piece piece = pieces.piece();
    const TilePlace tile = place_of(args, piece.tile);
    const int row = static_cast<int>(rank) * kRows + panel * kPanel, turn = tile.column / kTileColumns;
    const bool counts = tile.row + row < args.summed;
    float sums[8] = {};
    for (int step = piece.begin; step < piece.end; ++step, at.next()) {
      ring.wait_full(at);
      if (counts && step % args.column_tiles == turn) {
#pragma unroll 4
        for (int k = lane / kLanes; k < kBlockK; k += kRowsAtOnce) {
          const uint4 raw =
              ptx::load_shared_uint4(memory.a(at.slot).chunk_at(k, panel * (kPanel / 8) + chunk));
          const uint32_t pairs[] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            sums[2 * j] += __uint_as_float(pairs[j] << 16);
            sums[2 * j + 1] += __uint_as_float(pairs[j] & 0xffff0000);
          }
        }
      }
      __syncwarp();  // all lanes have read
      if (lane == 0) ring.release(at);
    }
#pragma unroll
    for (float& one : sums)
      for (int distance = kLanes; distance < 32; distance *= 2)
        one += __shfl_xor_sync(0xffffffff, one, distance);
    if (!counts || lane >= kLanes) continue;
    float* to = sums_of(args, piece.tile, piece.partial) + row + chunk * 8;
#pragma unroll
    for (int i = 0; i < 8; i += 4)
      *reinterpret_cast<float4*>(to + i) = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
  }
}

// d = a^T b over some steps of K, for 64 rows of d
__device__ __forceinline__ void multiply(Sums& d, const Memory& memory, RingPlace<kSlots>& at, int steps,
                                         int consumer, int thread) {
  gemm::multiply<Major::kOther, Major::kOther, kColumns, kBlockK, kCluster>(
      d, memory.ring(), at, steps, thread,
      [=](int slot, int k) { return memory.a(slot).sum_rows(k, consumer * kWarpgroupRows); },
      [=](int slot, int k) { return memory.b(slot).sum_rows(k, 0); });
}

// Rounds and stores one four of a thread, of the 64 rows from `row` on
__device__ __forceinline__ void store(const Arguments& args, int row, int column, int four, int thread,
                                      float4 sums) {
  const int first = row + thread / 32 * 16 + thread % 32 / 4, at = column + 8 * four + thread % 4 * 2;
  if (at >= args.n) return;
  const float2 of_rows[] = {{sums.x, sums.y}, {sums.z, sums.w}};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t r = first + 8 * i;
    if (r >= args.m) continue;
    float2 pair = of_rows[i];
    if (args.e != nullptr) {
      const float2 e =
          __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(args.e[r * args.e_ld + at]));
      pair.x += e.x, pair.y += e.y;
    }
    reinterpret_cast<__nv_bfloat162&>(args.d[r * args.d_ld + at]) = __float22bfloat162_rn(pair);
  }
}

__device__ __forceinline__ void consume(const Memory& memory, const Arguments& args, int worker,
                                        uint32_t rank) {
  const int me = threadIdx.x / kWarpgroup - 1, thread = threadIdx.x % kWarpgroup;
  const int strip = static_cast<int>(rank) * kConsumers + me;  // of 64 rows of a tile
  RingPlace<kSlots> at;
  for (Split::PiecesOf pieces(args.split, worker); pieces.next();) {
    const Piece piece = pieces.piece();
    Sums d;
    multiply(d, memory, at, piece.end - piece.begin, me, thread);
    const TilePlace tile = place_of(args, piece.tile);
    float4* to =
        args.partials + int64_t{piece.partial} * kFoursOfPartial + strip * kFours * kWarpgroup + thread;
    if (piece.partial == Piece::kNoPartial) {
#pragma unroll
      for (int i = 0; i < kFours; ++i)
        store(args, tile.row + strip * kWarpgroupRows, tile.column, i, thread, four_of(d, i));
    } else {
#pragma unroll
      for (int i = 0; i < kFours; ++i) to[i * kWarpgroup] = four_of(d, i);
    }
  }
}

__global__ __launch_bounds__(kThreads,
                             1) void weight_gradient_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(1024) char shared[];
  const Memory memory{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const uint32_t rank = ptx::cluster_rank();
  const int worker = blockIdx.x / kCluster;
  if (threadIdx.x == 0) {
    memory.ring().init(kCluster * kConsumers + (args.summed > 0 ? kSummers : 0));
    ptx::fence_mbarrier_init();
    ptx::prefetch(args.a), ptx::prefetch(args.b);
  }
  ptx::cluster_sync();  // no CTA arrives at barriers, or fills memory, that another has not initialised
  if (threadIdx.x < kWarpgroup) {
    ptx::give_registers<kProducerRegisters>();
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) load(memory, args, worker, rank);
    if (args.summed > 0 && warp >= 1 && warp <= kSummers) sum(memory, args, worker, rank, warp - 1);
  } else {
    ptx::take_registers<kConsumerRegisters>();
    consume(memory, args, worker, rank);
  }
  ptx::cluster_sync();  // no CTA ends while another still fills its memory, or arrives there
}

// A block of one warpgroup for so many fours of a strip of 64 rows
constexpr int kFoursOfBlock = 4, kBlocksOfTile = kCluster * kConsumers * kFours / kFoursOfBlock;

// One sum of a, from the partial sums of all tiles of its row, which had the steps in turn
__device__ __forceinline__ void add_sums(const Arguments& args, int at) {
  if (at >= args.summed) return;
  float total = 0;
  for (int column = 0; column < args.column_tiles; ++column) {
    const int tile = tile_at(args, at / kTileRows, column);
    const auto add = [&](int partial) { total += sums_of(args, tile, partial)[at % kTileRows]; };
    if (tile < args.split.whole_tiles()) add(Piece::kNoPartial);
    for (Split::PartialsOf partials(args.split, tile); partials.next();) add(partials.partial());
  }
  if (args.e != nullptr) total += __bfloat162float(args.sums[at]);
  args.sums[at] = __float2bfloat16_rn(total);
}

// Blocks for the `split` tiles that were split, then blocks for sums of a
__global__ __launch_bounds__(kWarpgroup) void add_partials_kernel(const __grid_constant__ Arguments args,
                                                                  int split) {
  const int after = static_cast<int>(blockIdx.x) - split * kBlocksOfTile;
  if (after >= 0) return add_sums(args, after * kWarpgroup + static_cast<int>(threadIdx.x));
  const int tile = args.split.whole_tiles() + blockIdx.x / kBlocksOfTile,
            first = blockIdx.x % kBlocksOfTile * kFoursOfBlock, thread = threadIdx.x;
  const float4* from = args.partials + first * kWarpgroup + thread;
  float4 sums[kFoursOfBlock] = {};
  for (Split::PartialsOf partials(args.split, tile); partials.next();) {
    const float4* part = from + int64_t{partials.partial()} * kFoursOfPartial;
#pragma unroll
    for (int i = 0; i < kFoursOfBlock; ++i) {
      const float4 four = part[i * kWarpgroup];
      sums[i].x += four.x, sums[i].y += four.y, sums[i].z += four.z, sums[i].w += four.w;
    }
  }
  const TilePlace place = place_of(args, tile);
#pragma unroll
  for (int i = 0; i < kFoursOfBlock; ++i)
    store(args, place.row + first / kFours * kWarpgroupRows, place.column, first % kFours + i, thread,
          sums[i]);
}

int count(int64_t size, int64_t of_one) { return static_cast<int>(cuda::divide_up(size, of_one)); }

}  // namespace

cudaError_t run_weight_gradient(const Problem& p, int multiprocessors, cudaStream_t stream) {
  const int row_tiles = count(p.m, kTileRows), column_tiles = count(p.n, kTileColumns),
            tiles = row_tiles * column_tiles, workers = std::min(multiprocessors / kCluster, kMostPartials);
  Arguments args{.split = Split(tiles, count(p.k, kBlockK), workers, kMostPartials),
                 .partials = reinterpret_cast<float4*>(p.partials),
                 .sums_partials = p.partials + kSumsFrom,
                 .sums = static_cast<__nv_bfloat16*>(p.sums),
                 .d = static_cast<__nv_bfloat16*>(const_cast<void*>(p.d.data)),
                 .e = static_cast<const __nv_bfloat16*>(p.e.data),
                 .d_ld = p.d.ld,
                 .e_ld = p.e.ld,
                 .m = static_cast<int>(p.m),
                 .n = static_cast<int>(p.n),
                 .row_tiles = row_tiles,
                 .column_tiles = column_tiles,
                 .summed = static_cast<int>(p.summed)};
  const auto map = [](CUtensorMap& to, const Matrix& from, int64_t rows, int64_t columns) {
    return make_tensor_map(
        to,
        MatrixBoxes{.data = from.data, .rows = rows, .columns = columns, .ld = from.ld, .box_rows = kBlockK});
  };
  if (!map(args.a, p.a, p.k, p.m) || !map(args.b, p.b, p.k, p.n)) return cudaErrorInvalidValue;
  const cudaError_t launched =
      launch_clusters(weight_gradient_kernel, workers, kCluster, kThreads, kSharedBytes, stream, args);
  const int split = tiles - args.split.whole_tiles(),
            blocks = split * kBlocksOfTile + count(p.summed, kWarpgroup);
  if (launched != cudaSuccess || blocks == 0) return launched;
  cudaLaunchConfig_t adding{
      .gridDim = static_cast<unsigned>(blocks), .blockDim = kWarpgroup, .stream = stream};
  return cudaLaunchKernelEx(&adding, add_partials_kernel, args, split);
}

}  // namespace tessera::gemm
