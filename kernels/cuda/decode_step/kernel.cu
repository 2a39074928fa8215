// A decode step of one text as one kernel: a block on each multiprocessor goes through a list of
// instructions (kernels/decode_step).
//
// A step is a sequence of small GEMVs, each of which needs all results of the one before. As kernels they
// take several times as long as their bytes: the memory is idle while a kernel ends, the next one starts,
// and its first bytes arrive. Here
//   four warps of each block ask for the block's share of the weights, keys and values, instruction after
//     instruction, as far ahead as its ring in shared memory has room (ring.cuh): they wait for no result;
//   the other warps compute (linear.cuh, attend.cuh). They pass on flagged values of 32 bits: an element, and
//     the flag of the instruction and the run that wrote it. A reader spins until the value has its flag: no
//     barrier or fence stands between a value and its readers (as in NCCL's LL protocol).
// A buffer may serve several instructions one after another: an instruction writes once it has read all of
// its x, for which all blocks have read what was in the buffer before.
//
// All blocks must be resident at once. Sums have one order: the same bits each time.
#include <algorithm>
#include <span>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/decode_step/attend.cuh"
#include "kernels/cuda/decode_step/kernel.h"

namespace tessera::cuda::decode_step {
namespace {

constexpr int kLowestArch = 90;
constexpr int kRingAlignment = 1024;  // for CachedRows
// Registers of a thread; they move in warpgroups
constexpr int kComputeRegisters = 224, kLoadRegisters = 56;

template <int kWidth>
__device__ __forceinline__ void load(const Block& b) {
  Loader loader(b, (threadIdx.x - kComputeThreads) / kWarp);
  for (int i = 0; i < b.a.count; ++i) {
    const Instruction s = fetch(b.a, i);
    if (s.kind == InstructionKind::kLinear) loader.linear(s);
    if (s.kind == InstructionKind::kAttend) loader.template attend<kWidth>(s);
  }
}

template <int kWidth>
__device__ __forceinline__ void compute(const Block& b) {
  Reader reader;
  Turns turns;
  for (int i = 0; i < b.a.count; ++i) {
    const Instruction s = fetch(b.a, i);
    switch (s.kind) {
      case InstructionKind::kEmbed:
        embed(b, s, i);
        break;
      case InstructionKind::kLinear:
        linear(b, s, i, reader, turns);
        break;
      case InstructionKind::kAttend:
        attend<kWidth>(b, s, i, reader);
        break;
    }
  }
}

template <int kWidth>
__global__ __launch_bounds__(kThreads, 1) void decode_step_kernel(const __grid_constant__ KernelArgs a) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ Shared shared;
  const int start = *a.starts;
  if (start < 0 || start >= a.capacity) return;  // idle, or full
  uint8_t* ring = memory + (kRingAlignment - Block::address(memory) % kRingAlignment) % kRingAlignment;
  const uint32_t run = a.state[0];
  Block b{a,
          shared,
          a.values,
          Block::address(&shared),
          Block::address(ring),
          ring + a.ring_bytes,
          run,
          run * a.count % kFlags + 1,
          start};
  ptx::opaque(b.values), ptx::opaque(b.at), ptx::opaque(b.ring);  // kept, not computed at each use
  if (threadIdx.x < kEntries) {
    ptx::mbarrier_init(b.full(threadIdx.x), kLoaders);
    ptx::mbarrier_init(b.empty(threadIdx.x), kWarps);
    ptx::fence_mbarrier_init();
  } else if (const int pairs = a.head_dim / 2, at = threadIdx.x - kEntries; at < 2 * pairs) {
    const int which = at / pairs, pair = at % pairs;
    if (a.angles[which])
      shared.angles[which][pair] =
          reinterpret_cast<const float2*>(a.angles[which])[int64_t{start} * pairs + pair];
  }
  __syncthreads();  // the barriers and angles are there
  if (threadIdx.x < kComputeThreads) {
    ptx::take_registers<kComputeRegisters>();
    compute<kWidth>(b);
  } else {
    ptx::give_registers<kLoadRegisters>();
    load<kWidth>(b);
  }
  // The last block to end counts the run: all have then read the number.
  if (threadIdx.x == 0 && atomicInc(a.state + 1, gridDim.x - 1) == gridDim.x - 1) a.state[0] = b.run + 1;
#endif
}

// Maps of the caches; false where the driver refuses one
bool map_caches(KernelArgs& args) {
  for (const Instruction& s : std::span(args.instructions, static_cast<size_t>(args.count))) {
    if (s.kind != InstructionKind::kAttend) continue;
    const auto [first, second] =
        std::minmax({static_cast<const bf16*>(s.weight), static_cast<const bf16*>(s.bias)});
    const View<void> cache{.data = const_cast<bf16*>(first),
                           .batch = second - first,
                           .row = int64_t{args.kv_heads} * args.head_dim,
                           .head = args.head_dim};
    if (!hopper::make_tensor_map(
            args.caches[s.cache],
            hopper::HeadBoxes{
                .tensor = cache,
                .batch = 2,
                .tokens = s.C,
                .heads = args.kv_heads,
                .box = hopper::box_of(args.head_dim, args.head_dim <= 64 ? 64 : 128, AttendTile<64>::kKeys)}))
      return false;
  }
  return true;
}

// Bytes of shared memory: of the largest entry of the ring, and of what lies behind the ring
struct SharedSizes {
  int entry, region;
};
SharedSizes shared_sizes(const Args& args, SharedSizes attend) {
  SharedSizes most = attend;
  for (const Instruction& s : std::span(args.instructions, static_cast<size_t>(args.count))) {
    if (s.kind != InstructionKind::kLinear) continue;
    const int norm = s.norm == InstructionNorm::kNone ? 0 : 4 * s.C;
    most.entry = std::max({most.entry, norm, kTileRows * pitch_of(std::min(s.C, kChunk))});
    most.region = std::max(most.region, x_bytes(s.norm, s.C));
  }
  return most;
}

template <int kWidth>
bool launch_width(KernelArgs& args, int blocks, cudaStream_t stream) {
  const auto kernel = decode_step_kernel<kWidth>;
  cudaFuncAttributes compiled{};
  TESSERA_CUDA(cudaFuncGetAttributes(&compiled, kernel));
  if (compiled.ptxVersion < kLowestArch) return false;  // a build for older GPUs has no code of it
  int device = 0, most = 0;
  TESSERA_CUDA(cudaGetDevice(&device));
  TESSERA_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const auto [entry, region] =
      shared_sizes(args, {kWarps * 2 * CachedRows<kWidth>::kBytes, AttendMemory<kWidth>::kBytes});
  const int shared_bytes = (most - static_cast<int>(sizeof(Shared))) / 128 * 128;
  args.ring_bytes = (shared_bytes - kRingAlignment - region) / 128 * 128;
  if (args.kv_heads > blocks || args.ring_bytes < 2 * entry || !map_caches(args)) return false;
  TESSERA_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes));
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  TESSERA_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<const KernelArgs&>(args)));
  return true;
}

}  // namespace

bool launch(const Args& args, int blocks, cudaStream_t stream) {
  KernelArgs all{args};
  return args.head_dim <= 64 ? launch_width<64>(all, blocks, stream) : launch_width<128>(all, blocks, stream);
}

}  // namespace tessera::cuda::decode_step
