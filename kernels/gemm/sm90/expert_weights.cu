// d[e] (+)= the sum over the rows of expert e of a^T b, one of which is gathered. A tile of a CTA is 128
// columns of the gathered operand and 192 of the other, which both CTAs of a cluster need: each loads half of
// it. Steps are 64 rows. Behind the expert's last row gathered rows are zeros: the rows of the next expert
// that TMA loads beside them add nothing.
#include <algorithm>

#include "kernels/gemm/sm90/expert_tiles.cuh"
#include "kernels/gemm/sm90/launch.cuh"

namespace tessera::gemm {
namespace {

constexpr int kGatherRegisters = 40, kGatherConsumerRegisters = 232;
static_assert(are_there(kGatherRegisters, kGatherConsumerRegisters));

using GatheredTile = Tile<kBlockK, kTileRows>;
using OtherTile = Tile<kBlockK, kTileColumns>;
constexpr int kOtherPanels = kTileColumns / kPanel;

// A consumer's sums of a tile: 64 of the gathered columns a strip
using Strip = float[kTileColumns / 2];

__device__ __forceinline__ auto tiles_of(const ExpertArguments& args) {
  return [count = args.gathered_tiles * args.other_tiles](int) { return count; };
}
__device__ __forceinline__ int steps_of(int rows) { return (rows + kBlockK - 1) / kBlockK; }

struct Columns {
  int gathered, other;
};
__device__ __forceinline__ Columns columns_of(const ExpertArguments& args, int index, uint32_t rank) {
  return {(index % args.gathered_tiles * kCluster + static_cast<int>(rank)) * kTileRows,
          index / args.gathered_tiles * kTileColumns};
}

// The rows of the tiles index, index + clusters, .., two steps at a time
struct Walk {
  const ExpertArguments& args;
  int index, clusters;
  uint32_t rank;
  ExpertTile at{args.offsets, args.experts};
  int row = 0, rows = 0;  // of the expert: where the two steps begin, and where they end
  Columns columns = {};

  __device__ __forceinline__ bool next() {
    row += 2 * kBlockK;
    while (row >= rows) {
      if (!at.seek(index, tiles_of(args))) return false;
      columns = columns_of(args, index - at.before, rank);
      index += clusters, row = 0, rows = at.rows;
    }
    return true;
  }
};

// By a warpgroup: a thread copies the chunk thread % 16 of the rows thread / 16 + 8 i of a step. The 16
// threads that copy the same rows load the number of one row each, for two steps, while the two steps before
// are copied. One thread of each of three warps loads a panel of the other operand.
__device__ __forceinline__ void gather(const Memory& memory, const ExpertArguments& args, int cluster,
                                       int clusters, uint32_t rank) {
  constexpr int kChunks = kTileRows / 8, kRowsAtOnce = kWarpgroup / kChunks, kCopies = kBlockK / kRowsAtOnce;
  static_assert(kChunks == 2 * kCopies && kCopies * kRowsAtOnce == kBlockK);
  const Ring<kSlots> ring = memory.ring();
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int first_row = thread / kChunks, chunk = thread % kChunks;
  const int own_row = first_row + chunk * kRowsAtOnce;
  const uint32_t place = GatheredTile{0}.chunk_at(first_row, chunk);
  const bool loads_panel = lane == 0 && warp < kOtherPanels;
  Walk walk{args, cluster, clusters, rank};
  const auto number = [&] {
    const int row = walk.row + own_row;
    return args.gathered.number_of(walk.at.first + row, row < walk.rows);
  };
  RingPlace<kSlots> slot;
  bool is_there = walk.next();
  int numbers = is_there ? number() : 0;
  while (is_there) {
    const int chunks = args.gathered.chunk_of(numbers);
    const Columns columns = walk.columns;
    const int first = walk.at.first + walk.row, rows = walk.rows - walk.row;
    is_there = walk.next();
    if (is_there) numbers = number();
    const int column = columns.gathered + chunk * 8;
    const bool has_column = column < args.gathered.columns;
    const bool all_columns = columns.gathered + kTileRows <= args.gathered.columns;
    const char* from = args.gathered.data + (has_column ? column * 2 : 0);
    ptx::opaque(from);  // one sum, not one for each copy
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const int left = rows - step * kBlockK;
      if (left <= 0) break;
      const char* sources[kCopies];
#pragma unroll
      for (int i = 0; i < kCopies; ++i)
        sources[i] = from + int64_t{__shfl_sync(0xffffffff, chunks, step * kCopies + i, kChunks)} * 16;
#pragma unroll
      for (const char*& source : sources) ptx::opaque(source);
      ring.wait_empty(slot);
      if (loads_panel) {
        const uint32_t full = ring.announce(slot, kBBytes / kOtherPanels);
        load_panel_of_b(memory, args.gemm, slot.slot, full, first + step * kBlockK, columns.other, rank,
                        warp);
      }
      __syncwarp();
      const uint32_t to = memory.a(slot.slot).base + place;
      const auto copy = [&](auto&& is_there) {
#pragma unroll
        for (int i = 0; i < kCopies; ++i)
          ptx::cp_async_16(to + i * kRowsAtOnce * kPanel * 2, sources[i], is_there(i));
      };
      if (left >= kBlockK && all_columns)
        copy([](int) { return true; });
      else
        copy([=](int i) { return has_column && first_row + i * kRowsAtOnce < left; });
      ring.fill_asynchronously(slot);
      slot.next();
    }
  }
}

// d = gathered^T other over slots from `at` on, 0 without any. Calls issued() when all wgmmas are issued.
template <class Issued>
__device__ __forceinline__ void multiply(Sums& d, const Memory& memory, RingPlace<kSlots> at, int steps,
                                         int thread, Issued&& issued) {
#pragma unroll
  for (Strip& strip : d)
#pragma unroll
    for (float& sum : strip) sum = 0;
  if (steps == 0) return issued();
  const auto products = [&](int slot, int k) {
    const GatheredTile gathered{memory.a(slot).base};
    const OtherTile other{memory.b(slot)};
#pragma unroll
    for (int i = 0; i < kHalves; ++i)
      ptx::Wgmma<kTileColumns>::template shared<Major::kOther, Major::kOther>(
          d[i], gathered.sum_rows(k, i * kWarpgroupRows), other.sum_rows(k, 0), true);
  };
  multiply_slots</*kCopied=*/true>(d, memory, at, steps, thread, products, issued);
}

// Lane l of four has word l of each of four chunks of 16 bytes: they become the words of chunk l, and back.
__device__ __forceinline__ void turn(uint32_t (&words)[4]) {
#pragma unroll
  for (int by = 1; by <= 2; by *= 2) {
    const bool upper = threadIdx.x & by;
#pragma unroll
    for (int low = 0; low < 4; ++low) {
      if (low & by) continue;
      const uint32_t sent = upper ? words[low] : words[low + by];
      const uint32_t come = __shfl_xor_sync(0xffffffff, sent, by);
      (upper ? words[low] : words[low + by]) = come;
    }
  }
}

// Rounds and stores a strip, whose sums begin at these columns. Four lanes have four chunks of 16 bytes of
// four 8 x 8 matrices; where d's rows are columns of the other operand, these are transposed.
template <bool kGatheredIsFirst>
__device__ __forceinline__ void store(const ExpertArguments& args, const Strip& d, int expert, Columns from,
                                      int thread) {
  const int rows = kGatheredIsFirst ? args.gathered.columns : args.other_columns,
            columns = kGatheredIsFirst ? args.other_columns : args.gathered.columns;
  const int lane = thread % 32, first = from.gathered + thread / 32 * 16;
  __nv_bfloat16* to = args.d + static_cast<int64_t>(expert) * rows * columns;
#pragma unroll
  for (int four = 0; four < kTileColumns / 16; ++four) {
    // Of matrix i: which 8 of the 16 gathered columns, and which 8 of the 192 others
    const auto half_of = [=](int i) { return kGatheredIsFirst ? four % 2 : i % 2; };
    const auto eight_of = [=](int i) { return kGatheredIsFirst ? four / 2 * 4 + i : four * 2 + i / 2; };
    const int gathered = first + half_of(lane % 4) * 8, other = from.other + eight_of(lane % 4) * 8;
    const int row = (kGatheredIsFirst ? gathered : other) + lane / 4,
              column = kGatheredIsFirst ? other : gathered;
    const bool is_there = row < rows && column < columns;
    uint4* chunk = reinterpret_cast<uint4*>(to + static_cast<int64_t>(row) * columns + column);
    uint32_t words[4] = {};
    if (args.accumulate) {
      if (is_there) {
        const uint4 old = *chunk;
        words[0] = old.x, words[1] = old.y, words[2] = old.z, words[3] = old.w;
      }
      turn(words);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* sums = &d[4 * eight_of(i) + 2 * half_of(i)];
      if (!kGatheredIsFirst && args.accumulate) words[i] = ptx::transpose_8x8(words[i]);
      const float2 old = unpack_bf16(words[i]);
      words[i] = ptx::pack_bf16(sums[0] + old.x, sums[1] + old.y);
      if (!kGatheredIsFirst) words[i] = ptx::transpose_8x8(words[i]);
    }
    turn(words);
    if (is_there) *chunk = {words[0], words[1], words[2], words[3]};
  }
}

template <bool kGatheredIsFirst>
__device__ __forceinline__ void consume(const Memory& memory, const ExpertArguments& args, int cluster,
                                        int clusters, uint32_t rank) {
  const int me = threadIdx.x / kWarpgroup - 1, thread = threadIdx.x % kWarpgroup;
  if (me == 1) ptx::barrier_arrive(kTurnBarrier, kConsumers * kWarpgroup);  // the first turn is the other's
  ExpertTile at{args.offsets, args.experts};
  uint32_t slots = 0;  // that have gone round before
  bool is_there = at.seek(cluster, tiles_of(args));
  for (int index = cluster, whose = 0; is_there; whose ^= 1) {
    const int expert = at.expert, steps = steps_of(at.rows);
    const Columns tile = columns_of(args, index - at.before, rank);
    index += clusters;
    is_there = at.seek(index, tiles_of(args));
    if (whose == me) {
      ptx::barrier_sync(kTurnBarrier + me, kConsumers * kWarpgroup);
      Sums d;
      multiply(d, memory, {static_cast<int>(slots % kSlots), slots / kSlots & 1}, steps, thread, [&] {
        if (is_there) ptx::barrier_arrive(kTurnBarrier + (me ^ 1), kConsumers * kWarpgroup);
      });
      if (steps > 0 || !args.accumulate) {
#pragma unroll
        for (int i = 0; i < kHalves; ++i)
          store<kGatheredIsFirst>(args, d[i], expert, {tile.gathered + i * kWarpgroupRows, tile.other},
                                  thread);
      }
    }
    slots += steps;
  }
}

template <bool kGatheredIsFirst>
__global__ __launch_bounds__(kThreads,
                             1) void expert_weights_kernel(const __grid_constant__ ExpertArguments args) {
  extern __shared__ __align__(1024) char shared[];
  const Memory memory{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const uint32_t rank = ptx::cluster_rank();
  const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  if (threadIdx.x == 0) {
    // Each slot is read by one warpgroup of each CTA.
    memory.ring().init(kCluster, kOtherPanels + kWarpgroup);
    ptx::fence_mbarrier_init();
    ptx::prefetch(args.gemm.b);
  }
  ptx::cluster_sync();  // no CTA arrives at barriers, or fills memory, that another has not initialised
  if (threadIdx.x < kWarpgroup) {
    ptx::give_registers<kGatherRegisters>();
    gather(memory, args, cluster, clusters, rank);
  } else {
    ptx::take_registers<kGatherConsumerRegisters>();
    consume<kGatheredIsFirst>(memory, args, cluster, clusters, rank);
  }
  ptx::cluster_sync();  // no CTA ends while another still fills its memory, or arrives there
}

}  // namespace

cudaError_t run_expert_weight_gradients(const ExpertWeightGradients& p, int multiprocessors,
                                        cudaStream_t stream) {
  const ExpertRows& of = p.of;
  ExpertArguments args{
      .gemm = {},
      .offsets = of.offsets,
      .experts = static_cast<int>(of.experts),
      .gathered = {.data = static_cast<const char*>(p.gathered),
                   .numbers = of.numbers,
                   .active = static_cast<int>(of.active),
                   .columns = static_cast<int>(p.gathered_columns)},
      .b_rows = 0,
      .d = static_cast<__nv_bfloat16*>(p.d),
      .gathered_tiles = static_cast<int>(cuda::divide_up(p.gathered_columns, kRowsOfCluster)),
      .other_tiles = static_cast<int>(cuda::divide_up(p.other_columns, kTileColumns)),
      .other_columns = static_cast<int>(p.other_columns),
      .accumulate = p.accumulate};
  const cudaError_t status = map(args.gemm.b, MatrixBoxes{.data = p.other,
                                                          .rows = of.rows,
                                                          .columns = p.other_columns,
                                                          .ld = p.other_columns,
                                                          .box_rows = kBlockK / kCluster});
  if (status != cudaSuccess) return status;
  const auto kernel = p.gathered_is_first ? expert_weights_kernel<true> : expert_weights_kernel<false>;
  const int64_t tiles = of.experts * args.gathered_tiles * args.other_tiles;
  const int clusters = static_cast<int>(std::min<int64_t>(tiles, multiprocessors / kCluster));
  return launch_clusters(kernel, clusters, kCluster, kThreads, kSharedBytes, stream, args);
}

}  // namespace tessera::gemm
