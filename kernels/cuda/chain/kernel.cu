// A decode step of one text as one kernel: a block on each multiprocessor goes through a table of stages.
//
// A step is a chain of small products, each of which needs all of the one before. As kernels they take
// several times as long as their bytes: the memory is idle while a kernel ends, the next one starts, and its
// first bytes come. Here
//   one warp of each block asks for the block's share of the weights, keys and values, stage after stage, as
//     far ahead as its ring in shared memory has room (ring.cuh): it waits for no result;
//   the other warps compute (linear.cuh, attend.cuh). What they pass on are words of 32 bits, an element and
//     the stamp of the stage and the run that wrote it. Who needs a word reads it until it has its stamp: no
//     barrier, fence or flag stands between a value and its readers (as in NCCL's protocol LL).
// A buffer of words may serve several stages one after another: a stage writes once it has read all of its x,
// for which all blocks have read what was in the buffer before.
//
// All blocks must be resident at once. Sums have one order: the same bits each time.
#include <algorithm>

#include "kernels/cuda/chain/attend.cuh"
#include "kernels/cuda/chain/kernel.h"
#include "kernels/cuda/cuda_check.h"

namespace tessera::cuda::chain {
namespace {

constexpr int kLowestArch = 90;

template <int kWidth>
__device__ __forceinline__ void load(const Block& b) {
  Loader loader(b);
  for (int i = 0; i < b.a.count; ++i) {
    const Stage s = fetch(b.a, i);
    if (s.kind == StageKind::kLinear) loader.linear(s);
    if (s.kind == StageKind::kAttend) loader.template attend<kWidth>(s);
  }
}

template <int kWidth>
__device__ __forceinline__ void compute(const Block& b) {
  Reader reader;
  int turn = 0;
  for (int i = 0; i < b.a.count; ++i) {
    const Stage s = fetch(b.a, i);
    switch (s.kind) {
      case StageKind::kEmbed:
        embed(b, s, i);
        break;
      case StageKind::kLinear:
        linear(b, s, i, reader, turn);
        break;
      case StageKind::kAttend:
        attend<kWidth>(b, s, i, reader);
        break;
    }
  }
}

template <int kWidth>
__global__ __launch_bounds__(kThreads, 1) void chain_kernel(const __grid_constant__ Args a) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ Shared shared;
  const int start = *a.starts;
  if (start < 0 || start >= a.capacity) return;  // idle, or full
  const Block b{a, shared, Block::address(memory), memory + a.ring_bytes, a.state[0], start};
  if (threadIdx.x < kEntries) {
    ptx::mbarrier_init(b.full(threadIdx.x), 1);
    ptx::mbarrier_init(b.empty(threadIdx.x), kWarps);
    ptx::fence_mbarrier_init();
  } else if (a.angles && threadIdx.x - kEntries < a.head_dim / 2) {
    const int pair = threadIdx.x - kEntries;
    shared.angles[pair] = reinterpret_cast<const float2*>(a.angles)[int64_t{start} * (a.head_dim / 2) + pair];
  }
  __syncthreads();  // the barriers and angles are there
  threadIdx.x < kComputeThreads ? compute<kWidth>(b) : load<kWidth>(b);
  // The last block to end counts the run: all have then read the number.
  if (threadIdx.x == 0 && atomicInc(a.state + 1, gridDim.x - 1) == gridDim.x - 1) a.state[0] = b.run + 1;
#endif
}

// Bytes of the largest entry of the ring
int largest_entry(const Args& args, int attend_bytes) {
  int most = attend_bytes;
  for (int i = 0; i < args.count; ++i) {
    const Stage& s = args.stages[i];
    if (s.kind != StageKind::kLinear) continue;
    most = std::max(most, s.norm == StageNorm::kNone ? 0 : 4 * s.C);
    most = std::max(most, kTileRows * pitch_of(std::min(s.C, kChunk)));
  }
  return most;
}

template <int kWidth>
bool launch_width(Args& args, int blocks, cudaStream_t stream) {
  const auto kernel = chain_kernel<kWidth>;
  cudaFuncAttributes compiled{};
  TESSERA_CUDA(cudaFuncGetAttributes(&compiled, kernel));
  if (compiled.ptxVersion < kLowestArch) return false;  // a build for older GPUs has no code of it
  int device = 0, most = 0;
  TESSERA_CUDA(cudaGetDevice(&device));
  TESSERA_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  int inputs = 0;
  for (int i = 0; i < args.count; ++i)
    if (args.stages[i].kind == StageKind::kLinear) inputs = std::max(inputs, args.stages[i].C);
  const int region = std::max(2 * inputs, AttendMemory<kWidth>::kBytes);
  const int shared_bytes = (most - static_cast<int>(sizeof(Shared))) / 128 * 128;
  args.ring_bytes = (shared_bytes - region) / 128 * 128;
  using Rows = attention::decode::SharedRows<AttendTile<kWidth>>;
  if (args.kv_heads > blocks || args.ring_bytes < 2 * largest_entry(args, kWarps * 2 * Rows::kBytes))
    return false;
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
  TESSERA_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<const Args&>(args)));
  return true;
}

}  // namespace

bool launch(Args& args, int blocks, cudaStream_t stream) {
  return args.head_dim <= 64 ? launch_width<64>(args, blocks, stream)
                             : launch_width<128>(args, blocks, stream);
}

}  // namespace tessera::cuda::chain
