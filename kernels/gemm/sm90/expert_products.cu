// d[r] = a[r] b[e] + bias[e] for the rows r of every expert e. The tiles of an expert begin at its first row.
// What a tile has behind the expert's last row is multiplied, and not stored. FP8 values move in pairs, which
// are as wide as an element of bf16; the last slot may be half full, with zeros.
#include <algorithm>

#include "kernels/gemm/sm90/expert_tiles.cuh"
#include "kernels/gemm/sm90/launch.cuh"

namespace tessera::gemm {
namespace {

constexpr int kGatherRegisters = 56, kGatherConsumerRegisters = 224;
static_assert(are_there(kGatherRegisters, kGatherConsumerRegisters));

__device__ __forceinline__ int row_tiles_of(int rows) { return (rows + kRowsOfCluster - 1) / kRowsOfCluster; }
__device__ __forceinline__ auto tiles_of(const ExpertArguments& args) {
  return [columns = args.gemm.column_tiles](int rows) { return row_tiles_of(rows) * columns; };
}
__device__ __forceinline__ TilePlace place_of(const ExpertArguments& args, const ExpertTile& at, int index,
                                              uint32_t rank) {
  return gemm::place_of(index - at.before, row_tiles_of(at.rows), args.gemm.column_tiles, args.gemm.group,
                        rank);
}
template <Major kB>
__device__ __forceinline__ void load_weights(const Memory& memory, const ExpertArguments& args, int slot,
                                             uint32_t full, int k, int column, int expert, uint32_t rank) {
  const int before = expert * args.b_rows;
  kB == Major::kSum ? load_b<kB>(memory, args.gemm, slot, full, k, before + column, rank)
                    : load_b<kB>(memory, args.gemm, slot, full, before + k, column, rank);
}

// By one thread
template <Major kB>
__device__ __forceinline__ void load_rows(const Memory& memory, const ExpertArguments& args, int cluster,
                                          int clusters, uint32_t rank) {
  const Ring<kSlots> ring = memory.ring();
  RingPlace<kSlots> slot;
  ExpertTile at{args.offsets, args.experts};
  for (int index = cluster; at.seek(index, tiles_of(args)); index += clusters) {
    const TilePlace tile = place_of(args, at, index, rank);
    for (int step = 0; step < args.gemm.steps; ++step, slot.next()) {
      const int k = step * kBlockK;
      const uint32_t full = ring.begin_fill(slot, kSlotBytes);
      ptx::load_box(memory.a(slot.slot).base, args.gemm.a, full, k, at.first + tile.row);
      load_weights<kB>(memory, args, slot.slot, full, k, tile.column, at.expert, rank);
    }
  }
}

// By a warpgroup: a thread has the chunk thread % 8 of the rows thread / 8 + 16 i. Of its warp's 32 rows each
// lane loads the number of one, a tile ahead.
template <Major kB>
__device__ __forceinline__ void gather_rows(const Memory& memory, const ExpertArguments& args, int cluster,
                                            int clusters, uint32_t rank) {
  constexpr int kChunks = kBlockK / 8, kRowsAtOnce = kWarpgroup / kChunks, kCopies = kTileRows / kRowsAtOnce;
  const Ring<kSlots> ring = memory.ring();
  const int thread = threadIdx.x, lane = thread % 32;
  const int own_row = thread / 32 * 4 + lane % 4 + lane / 4 * kRowsAtOnce;
  const uint32_t place = Tile<kTileRows, kBlockK>{0}.chunk_at(thread / kChunks, thread % kChunks);
  RingPlace<kSlots> slot;
  ExpertTile at{args.offsets, args.experts};
  TilePlace tile;
  int number = 0;
  const auto seek = [&](int index) {
    if (!at.seek(index, tiles_of(args))) return false;
    tile = place_of(args, at, index, rank);
    const int row = tile.row + own_row;
    number = args.gathered.number_of(at.first + row, row < at.rows);
    return true;
  };
  int index = cluster;
  for (bool is_there = seek(index); is_there;) {
    const int own_chunk = args.gathered.chunk_of(number), column = tile.column, expert = at.expert;
    int chunks[kCopies];
#pragma unroll
    for (int i = 0; i < kCopies; ++i)
      chunks[i] = __shfl_sync(0xffffffff, own_chunk, 4 * i + lane / kChunks);
    const char* from = args.gathered.data + thread % kChunks * 16;
    int left = args.gathered.columns / 8 - thread % kChunks;  // chunks of a row from here on
    for (int step = 0; step < args.gemm.steps; ++step, slot.next(), from += kPanel * 2, left -= kChunks) {
      ring.wait_empty(slot);
      if (thread == 0) {
        const uint32_t full = ring.announce(slot, kBBytes);
        load_weights<kB>(memory, args, slot.slot, full, step * kBlockK, column, expert, rank);
      }
      __syncwarp();
      const uint32_t to = memory.a(slot.slot).base + place;
#pragma unroll
      for (int i = 0; i < kCopies; ++i)
        ptx::cp_async_16(to + i * kRowsAtOnce * kPanel * 2, from + int64_t{chunks[i]} * 16, left > 0);
      ring.fill_asynchronously(slot);
      if (step == 0) is_there = seek(index += clusters);
    }
  }
}

// Stores the first `rows` rows of a tile, one panel after another: whole tiles by TMA, others by threads
template <class Out>
__device__ __forceinline__ void store(const Out& out, const ExpertArguments& args, const Sums& d,
                                      TilePlace tile, int rows) {
  if (out.thread == 0) ptx::bulk_wait_read<0>();
  out.barrier();
#pragma unroll
  for (int panel = 0; panel < Out::kPanels; ++panel) {
    const auto from = out.memory.buffer(out.me, panel % kBuffers);
#pragma unroll
    for (int step = 0; step < Out::kSteps; ++step) out.write_sums(d, from, panel, step);
    if (rows >= kTileRows) {
      out.template store<0>(args.gemm.d, from, tile, panel);
      continue;
    }
    out.barrier();
    for (int i = out.thread; i < rows * (kPanel / 8); i += kWarpgroup) {
      const int row = i / (kPanel / 8), chunk = i % (kPanel / 8),
                column = tile.column + panel * kPanel + chunk * 8;
      if (column < args.gemm.n)
        *reinterpret_cast<uint4*>(args.d + static_cast<int64_t>(tile.row + row) * args.gemm.n + column) =
            ptx::load_shared_uint4(from.chunk_at(row, chunk));
    }
  }
}

template <Major kB, bool kGather, Operands kOperands>
__device__ __forceinline__ void consume_rows(const Memory& memory, const ExpertArguments& args, int cluster,
                                             int clusters, uint32_t rank) {
  const int me = threadIdx.x / kWarpgroup - 1, thread = threadIdx.x % kWarpgroup;
  const Epilogue<Kind::kPlain, NoActivation, kOperands> out{memory, args.gemm, me, thread};
  const int steps = args.gemm.steps;
  if (me == 1) ptx::barrier_arrive(kTurnBarrier, kConsumers * kWarpgroup);  // the first turn is the other's
  ExpertTile at{args.offsets, args.experts};
  for (int turn = me;; turn += kConsumers) {
    const int index = cluster + turn * clusters;
    if (!at.seek(index, tiles_of(args))) break;
    const TilePlace tile = place_of(args, at, index, rank);
    const int rows = at.rows - tile.row, row = at.first + tile.row;
    Sums d;
    const uint32_t* biases = args.gemm.bias;
    out.begin_with(biases ? biases + int64_t{at.expert} * (args.gemm.n / 2) : nullptr, tile.column, d);
    const bool is_last = !at.seek(index + clusters, tiles_of(args));
    ptx::barrier_sync(kTurnBarrier + me, kConsumers * kWarpgroup);
    const uint32_t slots = turn * steps;  // that have gone round before
    multiply<kB, kOperands, kGather>(
        d, memory, {static_cast<int>(slots % kSlots), slots / kSlots & 1}, steps, thread, [&] {
          if (!is_last) ptx::barrier_arrive(kTurnBarrier + (me ^ 1), kConsumers * kWarpgroup);
        });
    out.rescale(d);
    store(out, args, d, {row, tile.column}, rows);
  }
  if (thread == 0) ptx::bulk_wait_read<0>();  // before the shared memory is gone
}

template <Major kB, bool kGather, Operands kOperands>
__global__ __launch_bounds__(kThreads, 1) void expert_products_kernel(
    const __grid_constant__ ExpertArguments args) {
  extern __shared__ __align__(1024) char shared[];
  const Memory memory{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const uint32_t rank = ptx::cluster_rank();
  const int cluster = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  if (threadIdx.x == 0) {
    memory.ring().init(kCluster, kGather ? 1 + kWarpgroup : 1);
    ptx::fence_mbarrier_init();
    ptx::prefetch(args.gemm.b), ptx::prefetch(args.gemm.d);
  }
  ptx::cluster_sync();  // no CTA arrives at barriers, or fills memory, that another has not initialised
  if (threadIdx.x < kWarpgroup) {
    if constexpr (kGather) {
      ptx::give_registers<kGatherRegisters>();
      gather_rows<kB>(memory, args, cluster, clusters, rank);
    } else {
      ptx::give_registers<kProducerRegisters>();
      if (threadIdx.x == 0) load_rows<kB>(memory, args, cluster, clusters, rank);
    }
  } else {
    ptx::take_registers<kGather ? kGatherConsumerRegisters : kConsumerRegisters>();
    consume_rows<kB, kGather, kOperands>(memory, args, cluster, clusters, rank);
  }
  ptx::cluster_sync();  // no CTA ends while another still fills its memory, or arrives there
}

template <bool kGather>
auto kernel_of(const ExpertProducts& p) {
  switch (p.operands) {
    case Operands::kE4m3:
      return expert_products_kernel<Major::kSum, kGather, Operands::kE4m3>;
    case Operands::kE5m2:
      return expert_products_kernel<Major::kSum, kGather, Operands::kE5m2>;
    case Operands::kBf16:
      break;
  }
  return p.transposed ? expert_products_kernel<Major::kSum, kGather, Operands::kBf16>
                      : expert_products_kernel<Major::kOther, kGather, Operands::kBf16>;
}

}  // namespace

cudaError_t run_expert_products(const ExpertProducts& p, int multiprocessors, cudaStream_t stream) {
  const ExpertRows& of = p.of;
  const int64_t k = p.operands == Operands::kBf16 ? p.k : p.k / 2;  // of FP8 in pairs
  ExpertArguments args{
      .gemm = {.bias = static_cast<const uint32_t*>(p.bias),
               .fp8 = {.a_scale = p.a_scale, .b_scale = p.b_scale},
               .m = static_cast<int>(of.rows),
               .n = static_cast<int>(p.n),
               .column_tiles = static_cast<int>(cuda::divide_up(p.n, kTileColumns)),
               .steps = static_cast<int>(cuda::divide_up(k, kBlockK)),
               .group = kGroupRows / kRowsOfCluster},
      .offsets = of.offsets,
      .experts = static_cast<int>(of.experts),
      .gathered = {.data = static_cast<const char*>(p.a),
                   .numbers = of.numbers,
                   .active = static_cast<int>(of.active),
                   .columns = static_cast<int>(k)},
      .b_rows = static_cast<int>(p.transposed ? p.n : p.k),
      .d = static_cast<__nv_bfloat16*>(p.d)};
  const auto matrix = [](const void* data, int64_t rows, int64_t columns, int box_rows) {
    return MatrixBoxes{
        .data = data, .rows = rows, .columns = columns, .ld = columns, .box_rows = box_rows};
  };
  cudaError_t status = of.numbers ? cudaSuccess : map(args.gemm.a, matrix(p.a, of.rows, k, kTileRows));
  if (status == cudaSuccess)
    status = map(args.gemm.b, p.transposed
                                  ? matrix(p.b, of.experts * p.n, k, kTileColumns / kCluster)
                                  : matrix(p.b, of.experts * k, p.n, kBlockK / kCluster));
  if (status == cudaSuccess) status = map(args.gemm.d, matrix(p.d, of.rows, p.n, kTileRows));
  if (status != cudaSuccess) return status;
  const auto kernel = of.numbers ? kernel_of<true>(p) : kernel_of<false>(p);
  const int64_t tiles = (of.rows / kRowsOfCluster + std::min(of.experts, of.rows)) * args.gemm.column_tiles;
  const int clusters = static_cast<int>(std::min<int64_t>(tiles, multiprocessors / kCluster));
  return launch_clusters(kernel, clusters, kCluster, kThreads, kSharedBytes, stream, args);
}

}  // namespace tessera::gemm
