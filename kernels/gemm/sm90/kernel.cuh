// d[M, N] = epilogue(a[M, K] b), with b stored as [N, K] or as [K, N], in bf16; sums are fp32 and a result
// is rounded once.
//
// A CTA is three warpgroups and takes tile after tile (persistent). One warpgroup loads each tile in steps
// of 64 along K, by TMA: a [128, 64] and b [192, 64] go to a slot of a ring. The two CTAs of a cluster
// have tiles one below the other, which need the same b: each loads half of it into both. Two warpgroups
// multiply, with their accumulators in registers:
//   for each tile of mine:
//     load the first panels of the epilogue's operand, if it has one; d = bias
//     for each slot: wait for it, d += a b (wgmma), release the slot before
//     for each panel of 64 columns of d:
//       wait for a buffer; epilogue from registers to the buffer (stmatrix); store it by TMA
// The two take turns. Slots come in the order of tiles, so that one computes its epilogue and stores while
// the other multiplies: the tensor cores hardly pause.
//
// With FP8 operands a slot has 128 of K: its rows have as many bytes, and only the instruction differs.
//
// Sums over rows of d, for the gradient of a bias: a consumer adds its rows of a tile in a fixed order and
// writes one row of partial sums. Same arguments, same bits.
#pragma once

#include "kernels/gemm/sm90/epilogue.cuh"

namespace tessera::gemm {

using ptx::Major;

// ---- the warpgroup that loads: one thread of it ----

inline constexpr uint16_t kBothCtas = (1 << kCluster) - 1;

// Half of a panel of b stored as [K, N], into both CTAs
__device__ __forceinline__ void load_panel_of_b(const Memory& memory, const Arguments& args, int slot,
                                                uint32_t full, int k, int column, uint32_t rank, int panel) {
  constexpr int kPart = kBlockK / kCluster;
  ptx::load_box_to(kBothCtas, memory.b(slot) + (panel * kBlockK + rank * kPart) * kPanel * 2, args.b, full,
                   column + panel * kPanel, k + static_cast<int>(rank) * kPart);
}

template <Major kB>
__device__ __forceinline__ void load_b(const Memory& memory, const Arguments& args, int slot, uint32_t full,
                                       int k, int column, uint32_t rank) {
  if constexpr (kB == Major::kSum) {
    constexpr int kPart = kTileColumns / kCluster;
    ptx::load_box_to(kBothCtas, memory.b(slot) + rank * kPart * kPanel * 2, args.b, full, k,
                     column + static_cast<int>(rank) * kPart);
  } else {
#pragma unroll
    for (int panel = 0; panel < kTileColumns / kPanel; ++panel)
      load_panel_of_b(memory, args, slot, full, k, column, rank, panel);
  }
}

template <Major kB>
__device__ __forceinline__ void load(const Memory& memory, const Arguments& args, int first, int clusters,
                                     uint32_t rank) {
  const Ring<kSlots> ring = memory.ring();
  RingPlace<kSlots> at;
  const int tiles = args.row_tiles * args.column_tiles;
  for (int index = first; index < tiles; index += clusters) {
    const TilePlace tile = place_of(args, index, rank);
    for (int step = 0; step < args.steps; ++step, at.next()) {
      const uint32_t full = ring.begin_fill(at, kSlotBytes);
      ptx::load_box(memory.a(at.slot).base, args.a, full, step * kBlockK, tile.row);
      load_b<kB>(memory, args, at.slot, full, step * kBlockK, tile.column, rank);
    }
  }
}

// ---- the warpgroups that multiply ----

// Releases a slot for a warpgroup, by one of its threads for each CTA of the cluster
__device__ __forceinline__ void release(const Ring<kSlots>& ring, RingPlace<kSlots> at, int thread) {
  if (thread < kCluster) ring.release_at(at, thread);
}

// Issues the products of `steps` slots, at least one, from slot `at` on, and releases each: products(slot, k)
// adds those of 16 elements of bf16 along K to d. kCopied: slots were filled by cp.async as well. Calls
// issued() when all wgmmas are issued.
template <bool kCopied, class Products, class Issued>
__device__ __forceinline__ void multiply_slots(Sums& d, const Memory& memory, RingPlace<kSlots> at, int steps,
                                               int thread, Products&& products, Issued&& issued) {
  const Ring<kSlots> ring = memory.ring();
  RingPlace<kSlots> before = at;
#pragma unroll
  for (int half = 0; half < kHalves; ++half) ptx::hold(d[half]);
  for (int step = 0; step < steps; ++step) {
    ring.wait_full(at);
    if constexpr (kCopied) ptx::fence_shared_for_async();
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlockK; k += kStepK) products(at.slot, k);
    ptx::wgmma_commit();
    if (step > 0) {
      ptx::wgmma_wait<1>();
      release(ring, before, thread);
    }
    before = at;
    at.next();
  }
  issued();
  ptx::wgmma_wait<0>();
  release(ring, before, thread);
#pragma unroll
  for (int half = 0; half < kHalves; ++half) ptx::hold(d[half]);
}

// d += a b over all of K
template <Major kB, Operands kOperands, bool kCopied = false, class Issued>
__device__ __forceinline__ void multiply(Sums& d, const Memory& memory, RingPlace<kSlots> at, int steps,
                                         int thread, Issued&& issued) {
  const auto products = [&](int slot, int k) {
    const auto a = memory.a(slot);
    const Tile<kTileColumns, kBlockK> b_rows{memory.b(slot)};
    const Tile<kBlockK, kTileColumns> b_columns{memory.b(slot)};
    const uint64_t b = kB == Major::kSum ? b_rows.sum_cols(0, k) : b_columns.sum_rows(k, 0);
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      if constexpr (kOperands == Operands::kBf16) {
        ptx::Wgmma<kTileColumns>::template shared<Major::kSum, kB>(d[half], a.sum_cols(64 * half, k), b,
                                                                   true);
      } else {
        ptx::WgmmaFp8<kTileColumns>::template shared<kOperands == Operands::kE5m2>(
            d[half], a.sum_cols(64 * half, k), b, true);
      }
  };
  multiply_slots<kCopied>(d, memory, at, steps, thread, products, issued);
}

template <Major kB, Kind kKind, class Activation, Operands kOperands>
__device__ __forceinline__ void consume(const Memory& memory, const Arguments& args, int first, int clusters,
                                        uint32_t rank) {
  const int me = threadIdx.x / kWarpgroup - 1, thread = threadIdx.x % kWarpgroup;
  Epilogue<kKind, Activation, kOperands> epilogue{memory, args, me, thread};
  const int tiles = args.row_tiles * args.column_tiles;
  if (me == 1) ptx::barrier_arrive(kTurnBarrier, kConsumers * kWarpgroup);  // the first turn is the other's
  for (int turn = me;; turn += kConsumers) {
    const int index = first + turn * clusters;
    if (index >= tiles) break;
    const TilePlace tile = place_of(args, index, rank);
    Sums d;
    epilogue.begin(tile, d);
    ptx::barrier_sync(kTurnBarrier + me, kConsumers * kWarpgroup);
    const uint32_t slots = turn * args.steps;  // that have gone round before
    multiply<kB, kOperands>(d, memory, {static_cast<int>(slots % kSlots), slots / kSlots & 1}, args.steps,
                            thread, [&] {
                              if (index + clusters < tiles)
                                ptx::barrier_arrive(kTurnBarrier + (me ^ 1), kConsumers * kWarpgroup);
                            });
    epilogue.finish(d, tile);
  }
  epilogue.end();
  if (thread == 0) ptx::bulk_wait_read<0>();  // before the shared memory is gone
}

template <Major kB, Kind kKind, class Activation, Operands kOperands>
__global__ __launch_bounds__(kThreads, 1) void gemm_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(1024) char shared[];
  const Memory memory{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const uint32_t rank = ptx::cluster_rank();
  const int first = blockIdx.x / kCluster, clusters = gridDim.x / kCluster;
  if (threadIdx.x == 0) {
    memory.ring().init(kCluster);  // each slot is read by one warpgroup of each CTA
    for (int i = 0; i < kConsumers; ++i) *Memory::largest(i) = 0;
    for (int i = 0; i < kConsumers * kBuffers; ++i) ptx::mbarrier_init(memory.operand_barrier(0, i), 1);
    ptx::fence_mbarrier_init();
    ptx::prefetch(args.a), ptx::prefetch(args.b), ptx::prefetch(args.d);
  }
  ptx::cluster_sync();  // no CTA arrives at barriers, or fills memory, that another has not initialised
  if (threadIdx.x < kWarpgroup) {
    ptx::give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) load<kB>(memory, args, first, clusters, rank);
  } else {
    ptx::take_registers<kConsumerRegisters>();
    consume<kB, kKind, Activation, kOperands>(memory, args, first, clusters, rank);
  }
  ptx::cluster_sync();  // no CTA ends while another still fills its memory, or arrives there
}

}  // namespace tessera::gemm
