// Several GEMMs in one kernel: d[M, N] = alpha a[M, K] b[K, N] + beta c, for matrices that would not fill the
// device one after the other. In bf16; sums are fp32 and a result is rounded once.
//
// Tiles of all of them are walked as one list by clusters of two CTAs (persistent). A cluster computes tiles
// of [256, 256], of which each CTA has 128 rows. One warpgroup loads 64 of K into a slot of a ring: the CTA's
// part of a, and half of its columns of b, which goes to both CTAs. Two multiply, 64 rows each (wgmma), and
// write a result panel by panel through shared memory.
//
// Of a symmetric d only tiles on and above the diagonal are computed. One above it is also written across
// it: its 8 x 8 blocks are transposed in registers. What a tile is, and in which order it adds, does not
// depend on the other GEMMs: same arguments, same bits.
#include <cuda_bf16.h>

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/multiply.cuh"
#include "kernels/gemm/sm90/problem.h"
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
constexpr int kTile = kColumns;
static_assert(kTile == kCluster * kRows);  // square, so that a tile across the diagonal is one, too
constexpr int kBlockK = kPanel, kSlots = 4;
constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
constexpr int kPanels = kColumns / kPanel, kSteps = kPanel / 16;

// An operand in a slot: its rows or columns of d, by 64 of K, as they are stored
template <Major kMajor, int kSize>
struct Operand {
  static constexpr bool kSum = kMajor == Major::kSum;
  using InSlot = Tile<kSum ? kSize : kBlockK, kSum ? kBlockK : kSize>;
  static __device__ __forceinline__ uint64_t at(uint32_t base, int first, int k) {
    const InSlot tile{base};
    return kSum ? tile.sum_cols(first, k) : tile.sum_rows(k, first);
  }
};
constexpr int kABytes = kRows * kBlockK * 2, kSlotBytes = kABytes + kColumns * kBlockK * 2;
// A panel of 64 rows and 64 columns of d on its way out, and the same across the diagonal
using Panel = Tile<kWarpgroupRows, kPanel>;
constexpr int kPanelsOfConsumer = 2;
constexpr int kSharedBytes =
    kSlots * kSlotBytes + kConsumers * kPanelsOfConsumer * Panel::kBytes + Ring<kSlots>::kBytes;
static_assert(kSharedBytes <= kSharedBytesOfCta);

// How the operands are stored: which dimension of each is contiguous
enum class Stored { kSumSum, kSumOther, kOtherOther };

struct One {
  const __nv_bfloat16* c;  // [m, n], ld from one row to the next; none: beta is 0
  int64_t ld;
  float alpha, beta;
  int m, n;
  int row_tiles, column_tiles, steps;  // of K
  int tiles_end;                       // its tiles, and those of the GEMMs before it
  Stored stored;
  bool symmetric;
};
struct Arguments {
  One ones[kMostOfBatch];  // the longest sums first: the last tiles to begin are short ones
  CUtensorMap a[kMostOfBatch], b[kMostOfBatch], d[kMostOfBatch];
  int tiles;
};

struct TilePlace {
  int one;  // which GEMM
  int row, column;
  bool mirrored;
};
// Of a symmetric d row after row, from the diagonal on; else along the side that has fewer tiles, so that
// what clusters read at a time stays in L2
__device__ __forceinline__ TilePlace place_of(const Arguments& args, int index) {
  TilePlace tile{.one = 0, .mirrored = false};
  int rest = index, row, column;
  while (index >= args.ones[tile.one].tiles_end) rest = index - args.ones[tile.one++].tiles_end;
  const One& one = args.ones[tile.one];
  if (one.symmetric) {
    for (row = 0; rest >= one.row_tiles - row; ++row) rest -= one.row_tiles - row;
    column = row + rest;
    tile.mirrored = column > row;
  } else if (one.row_tiles < one.column_tiles) {
    row = rest % one.row_tiles, column = rest / one.row_tiles;
  } else {
    row = rest / one.column_tiles, column = rest % one.column_tiles;
  }
  tile.row = row * kTile, tile.column = column * kTile;
  return tile;
}

struct Memory {
  uint32_t base;

  __device__ __forceinline__ uint32_t a(int slot) const { return base + slot * kSlotBytes; }
  __device__ __forceinline__ uint32_t b(int slot) const { return a(slot) + kABytes; }
  __device__ __forceinline__ Panel panel(int consumer, int which) const {
    return {base + kSlots * kSlotBytes + (consumer * kPanelsOfConsumer + which) * Panel::kBytes};
  }
  __device__ __forceinline__ Ring<kSlots> ring() const { return {panel(kConsumers, 0).base}; }
};

// By one thread: the operands of a tile
template <Major kA, Major kB>
__device__ __forceinline__ void load_tile(const Memory& memory, const Arguments& args, const TilePlace& tile,
                                          RingPlace<kSlots>& place, int rank) {
  constexpr uint16_t kAll = (1 << kCluster) - 1;
  const Ring<kSlots> ring = memory.ring();
  const CUtensorMap &a = args.a[tile.one], &b = args.b[tile.one];
  const int row = tile.row + rank * kRows, steps = args.ones[tile.one].steps;
  RingPlace<kSlots> at = place;
  for (int step = 0; step < steps; ++step, at.next()) {
    const uint32_t full = ring.begin_fill(at, kSlotBytes);
    const int k = step * kBlockK;
    if constexpr (kA == Major::kSum) {
      ptx::load_box(memory.a(at.slot), a, full, k, row);
    } else {
#pragma unroll
      for (int panel = 0; panel < kRows / kPanel; ++panel)
        ptx::load_box(memory.a(at.slot) + panel * kBlockK * kPanel * 2, a, full, row + panel * kPanel, k);
    }
    if constexpr (kB == Major::kSum) {
      constexpr int kPart = kColumns / kCluster;
      ptx::load_box_to(kAll, memory.b(at.slot) + rank * kPart * kBlockK * 2, b, full, k,
                       tile.column + rank * kPart);
    } else {
      constexpr int kPart = kPanels / kCluster;
#pragma unroll
      for (int j = 0; j < kPart; ++j) {
        const int panel = rank * kPart + j;
        ptx::load_box_to(kAll, memory.b(at.slot) + panel * kBlockK * kPanel * 2, b, full,
                         tile.column + panel * kPanel, k);
      }
    }
  }
  place = at;
}
__device__ __forceinline__ void load(const Memory& memory, const Arguments& args, int worker, int workers,
                                     int rank) {
  RingPlace<kSlots> at;
  for (int index = worker; index < args.tiles; index += workers) {
    const TilePlace tile = place_of(args, index);
    switch (args.ones[tile.one].stored) {
      case Stored::kSumSum:
        load_tile<Major::kSum, Major::kSum>(memory, args, tile, at, rank);
        break;
      case Stored::kSumOther:
        load_tile<Major::kSum, Major::kOther>(memory, args, tile, at, rank);
        break;
      case Stored::kOtherOther:
        load_tile<Major::kOther, Major::kOther>(memory, args, tile, at, rank);
    }
  }
}

using Sums = float[kColumns / 2];  // of a thread: wgmma's layout (kernels/hopper/ptx.cuh)

// d = a b over all of K, for 64 rows of d
template <Major kA, Major kB>
__device__ __forceinline__ void multiply(Sums& d, const Memory& memory, RingPlace<kSlots>& at, int steps,
                                         int consumer, int thread) {
  gemm::multiply<kA, kB, kColumns, kBlockK, kCluster>(
      d, memory.ring(), at, steps, thread,
      [=](int slot, int k) { return Operand<kA, kRows>::at(memory.a(slot), consumer * kWarpgroupRows, k); },
      [=](int slot, int k) { return Operand<kB, kColumns>::at(memory.b(slot), 0, k); });
}

// What a consumer does with its sums, a panel of 64 columns at a time. Of 16 columns, a step, a thread has
// four pairs: two rows of the columns c, c + 1, and of c + 8, c + 9.
struct Epilogue {
  const Memory& memory;
  const Arguments& args;
  int me, thread;
  TilePlace tile;
  int row;                            // the first of the consumer's
  using Pairs = uint32_t[kSteps][4];  // of bf16

  __device__ __forceinline__ void barrier() const { ptx::barrier_sync(1 + me, kWarpgroup); }

  // c's elements where the thread's sums of a panel are
  __device__ __forceinline__ void read(int panel, Pairs& c) const {
    const One& one = args.ones[tile.one];
    if (one.c == nullptr) return;
    const int first = row + thread / 32 * 16 + thread % 32 / 4,
              column = tile.column + panel * kPanel + thread % 4 * 2;
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = first + i % 2 * 8, at = column + 16 * step + i / 2 * 8;
        c[step][i] =
            r < one.m && at < one.n ? *reinterpret_cast<const uint32_t*>(one.c + r * one.ld + at) : 0;
      }
  }

  // Where a thread gives the address of its row of 16 x 16 elements
  __device__ __forceinline__ uint32_t at(Panel to, int row, int chunk) const {
    return to.chunk_at(row + thread % 16, chunk + thread % 32 / 16);
  }

  __device__ __forceinline__ void finish(const Sums& d, Pairs& c) const {
    const float alpha = args.ones[tile.one].alpha, beta = args.ones[tile.one].beta;
    const Panel out = memory.panel(me, 0), across = memory.panel(me, 1);
    const int warp = thread / 32;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      Pairs pairs;
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* sums = &d[32 * panel + 8 * step + 2 * i];
          float low = alpha * sums[0], high = alpha * sums[1];
          if (beta != 0) {
            low = fmaf(beta, __uint_as_float(c[step][i] << 16), low);
            high = fmaf(beta, __uint_as_float(c[step][i] & 0xffff0000), high);
          }
          pairs[step][i] = ptx::pack_bf16(low, high);
        }
      if (panel + 1 < kPanels) read(panel + 1, c);  // they come while these are written
      if (thread == 0) ptx::bulk_wait_read<0>();
      barrier();
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint32_t(&p)[4] = pairs[step];
        ptx::stmatrix_x4(at(out, 16 * warp, 2 * step), p[0], p[1], p[2], p[3]);
        if (tile.mirrored)
          ptx::stmatrix_x4(at(across, 16 * step, 2 * warp), ptx::transpose_8x8(p[0]),
                           ptx::transpose_8x8(p[2]), ptx::transpose_8x8(p[1]), ptx::transpose_8x8(p[3]));
      }
      ptx::fence_shared_for_async();
      barrier();
      if (thread == 0) {
        const int column = tile.column + panel * kPanel;
        ptx::store_box(args.d[tile.one], out.base, column, row);
        if (tile.mirrored) ptx::store_box(args.d[tile.one], across.base, row, column);
        ptx::bulk_commit();
      }
    }
  }
};

__device__ __forceinline__ void consume(const Memory& memory, const Arguments& args, int worker, int workers,
                                        int rank) {
  const int me = threadIdx.x / kWarpgroup - 1, thread = threadIdx.x % kWarpgroup;
  RingPlace<kSlots> at;
  for (int index = worker; index < args.tiles; index += workers) {
    const TilePlace tile = place_of(args, index);
    const int steps = args.ones[tile.one].steps;
    const Epilogue epilogue{.memory = memory,
                            .args = args,
                            .me = me,
                            .thread = thread,
                            .tile = tile,
                            .row = tile.row + rank * kRows + me * kWarpgroupRows};
    Epilogue::Pairs c{};
    epilogue.read(0, c);
    Sums d;
    switch (args.ones[tile.one].stored) {
      case Stored::kSumSum:
        multiply<Major::kSum, Major::kSum>(d, memory, at, steps, me, thread);
        break;
      case Stored::kSumOther:
        multiply<Major::kSum, Major::kOther>(d, memory, at, steps, me, thread);
        break;
      case Stored::kOtherOther:
        multiply<Major::kOther, Major::kOther>(d, memory, at, steps, me, thread);
    }
    epilogue.finish(d, c);
  }
  if (thread == 0) ptx::bulk_wait_read<0>();  // before the shared memory is gone
}

__global__ __launch_bounds__(kThreads, 1) void batch_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(1024) char shared[];
  const Memory memory{static_cast<uint32_t>(__cvta_generic_to_shared(shared))};
  const int rank = static_cast<int>(ptx::cluster_rank()), worker = blockIdx.x / kCluster,
            workers = gridDim.x / kCluster;
  if (threadIdx.x == 0) {
    memory.ring().init(kCluster * kConsumers);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_sync();  // no CTA arrives at barriers, or fills memory, that another has not initialised
  if (threadIdx.x < kWarpgroup) {
    ptx::give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) load(memory, args, worker, workers, rank);
  } else {
    ptx::take_registers<kConsumerRegisters>();
    consume(memory, args, worker, workers, rank);
  }
  ptx::cluster_sync();  // no CTA ends while another still fills its memory, or arrives there
}

int count(int64_t size, int64_t of_one) { return static_cast<int>(cuda::divide_up(size, of_one)); }

// False where the driver refuses a tensor map
bool describe(const Gemm& gemm, size_t at, Arguments& args) {
  const Stored stored = gemm.a.transposed   ? Stored::kOtherOther
                        : gemm.b.transposed ? Stored::kSumSum
                                            : Stored::kSumOther;
  const int rows = count(gemm.m, kTile), columns = count(gemm.n, kTile);
  args.tiles += gemm.symmetric ? rows * (rows + 1) / 2 : rows * columns;
  const void* c = gemm.c != nullptr ? gemm.c : gemm.d.data;
  args.ones[at] = {.c = gemm.beta != 0 ? static_cast<const __nv_bfloat16*>(c) : nullptr,
                   .ld = gemm.d.ld,
                   .alpha = gemm.alpha,
                   .beta = gemm.beta,
                   .m = static_cast<int>(gemm.m),
                   .n = static_cast<int>(gemm.n),
                   .row_tiles = rows,
                   .column_tiles = columns,
                   .steps = count(gemm.k, kBlockK),
                   .tiles_end = args.tiles,
                   .stored = stored,
                   .symmetric = gemm.symmetric};
  const auto map = [](CUtensorMap& to, const GemmMatrix& of, int64_t rows, int64_t columns, int box_rows) {
    return make_tensor_map(
        to,
        MatrixBoxes{.data = of.data, .rows = rows, .columns = columns, .ld = of.ld, .box_rows = box_rows});
  };
  return (stored == Stored::kOtherOther ? map(args.a[at], gemm.a, gemm.k, gemm.m, kBlockK)
                                        : map(args.a[at], gemm.a, gemm.m, gemm.k, kRows)) &&
         (stored == Stored::kSumSum ? map(args.b[at], gemm.b, gemm.n, gemm.k, kColumns / kCluster)
                                    : map(args.b[at], gemm.b, gemm.k, gemm.n, kBlockK)) &&
         map(args.d[at], gemm.d, gemm.m, gemm.n, kWarpgroupRows);
}

}  // namespace

cudaError_t run_batch_kernel(std::span<const Gemm> gemms, int multiprocessors, cudaStream_t stream) {
  std::vector<const Gemm*> by_length;
  for (const Gemm& gemm : gemms) by_length.push_back(&gemm);
  std::ranges::stable_sort(by_length, std::greater<>(), &Gemm::k);
  Arguments args{};
  for (size_t i = 0; i < by_length.size(); ++i)
    if (!describe(*by_length[i], i, args)) return cudaErrorInvalidValue;
  return launch_clusters(batch_kernel, std::min(args.tiles, multiprocessors / kCluster), kCluster, kThreads,
                         kSharedBytes, stream, args);
}

}  // namespace tessera::gemm
