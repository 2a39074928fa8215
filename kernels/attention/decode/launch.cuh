// Launching the two kernels of a call.
#pragma once

#include <climits>

#include "kernels/attention/decode/kernel.cuh"

namespace tessera::attention::decode {

// CTAs that run at once on the current device, at most `most` on a multiprocessor
inline AttnStatus resident_ctas(int shared_bytes, int* count, int most = INT_MAX) {
  int device = 0, sms = 0, shared_of_sm = 0, reserved = 0;
  const bool known =
      cudaGetDevice(&device) == cudaSuccess &&
      cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&shared_of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device) ==
          cudaSuccess &&
      cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device) == cudaSuccess;
  *count = sms * std::clamp(shared_of_sm / (shared_bytes + reserved), 1, most);
  return known ? ATTN_OK : ATTN_LAUNCH_FAILED;
}

// A multiprocessor is to keep all of its shared memory for both kernels: with no more than the first fills,
// the second would not start beside it.
template <class Kernel>
bool prefer_shared_memory(Kernel* kernel) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                              cudaSharedmemCarveoutMaxShared) == cudaSuccess;
}

// On 9.0 and later a kernel is started while the one before it still runs, and waits for it by itself, if its
// code was compiled to do so.
template <class Args>
AttnStatus launch_early(void (*kernel)(Args), dim3 grid, int threads, int shared_bytes, CUstream_st* stream,
                        const Args& args) {
  cudaFuncAttributes compiled;
  if (cudaFuncGetAttributes(&compiled, kernel) != cudaSuccess || !prefer_shared_memory(kernel) ||
      (shared_bytes > kSharedWithoutAsking &&
       cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes) !=
           cudaSuccess)) {
    return ATTN_LAUNCH_FAILED;
  }
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = compiled.ptxVersion >= kHopper ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args) == cudaSuccess ? ATTN_OK : ATTN_LAUNCH_FAILED;
}

template <class T, class WorkType>
struct DecodeLaunch {
  void (*kernel)(Args<T, WorkType>);
  int shared_bytes;
  WorkType work;  // without what the call says: launch_with_merge() adds it
  Workspace workspace;
};

// Launches a decoding kernel on launch.work.ctas CTAs, and merge_kernel.
template <class Tile, class T, class WorkType>
AttnStatus launch_with_merge(DecodeLaunch<T, WorkType> launch, const AttnDecode& d, CUstream_st* stream) {
  const AttnDecodeProblem& p = d.problem;
  const int64_t group = p.heads / p.kv_heads, turns = turns_of(group);
  launch.work.starts = d.starts;
  launch.work.batch = static_cast<int>(p.batch), launch.work.capacity = static_cast<int>(p.capacity);
  launch.work.rows = static_cast<int>(p.kv_heads * turns);
  const Args<T, WorkType> args = {.q = view<const T>(d.q),
                                  .k = view<const T>(d.k),
                                  .v = view<const T>(d.v),
                                  .out = view<T>(d.out),
                                  .work = launch.work,
                                  .part_out = launch.workspace.out,
                                  .part_lse = launch.workspace.lse,
                                  .group = static_cast<int>(group),
                                  .head_dim = p.head_dim,
                                  .turns = static_cast<int>(turns),
                                  .part_heads = static_cast<int>(std::min<int64_t>(group, kHeadsAtOnce)),
                                  .score = score_args_of(p),
                                  .sinks = static_cast<const T*>(d.sinks),
                                  .alibi = alibi_of(p),
                                  .score_cap = p.score_cap};
  const AttnStatus status = launch_early(launch.kernel, dim3(static_cast<unsigned>(args.work.ctas)),
                                         Tile::kWarps * 32, launch.shared_bytes, stream, args);
  if (status != ATTN_OK) return status;
  constexpr int kPairs = (Tile::kWidth + 63) / 64;
  return launch_early(merge_kernel<T, kPairs, Tile::kGeneral, WorkType>,
                      dim3(static_cast<unsigned>(p.heads), static_cast<unsigned>(p.batch)), kMergeWarps * 32,
                      0, stream, args);
}

template <class Tile, class Kernel>
AttnStatus launch_decode(const AttnDecode& d, CUstream_st* stream) {
  using T = typename Kernel::T;
  constexpr int kBytes = Memory<Tile, Kernel>::kBytes;
  int resident = 0;
  if (const AttnStatus status = resident_ctas(kBytes, &resident); status != ATTN_OK) return status;
  std::conditional_t<Tile::kListed, ListedWork, Work> work = {};
  work.unit_keys = kUnitKeys<Tile>;
  work.ctas = static_cast<int>(std::min({int64_t{resident}, kMostCtas, most_units(d.problem)}));
  if constexpr (Tile::kListed) work.blocks = blocks_of(d.problem), work.shift = work.blocks.shift_of(1);
  return launch_with_merge<Tile, T, decltype(work)>({.kernel = decode_kernel<Tile, Kernel>,
                                                     .shared_bytes = kBytes,
                                                     .work = work,
                                                     .workspace = {d.workspace, d.problem}},
                                                    d, stream);
}

// The kernels of the problem's width; kGeneral: those for sinks and a bias; kListed: for sparse blocks
template <bool kGeneral, bool kListed = false>
AttnStatus launch_decode_f32(const AttnDecode& d, CUstream_st* stream) {
  const auto launch = [&]<class Tile>() {
    return d.problem.heads == d.problem.kv_heads
               ? launch_decode<Tile, FmaKernel<Tile, 1>>(d, stream)
               : launch_decode<Tile, FmaKernel<Tile, kHeadsAtOnce>>(d, stream);
  };
  switch (tile_width(ATTN_F32, d.problem.head_dim)) {
    case 64:
      return launch.template operator()<F32Tile<64, kGeneral, kListed>>();
    case 128:
      return launch.template operator()<F32Tile<128, kGeneral, kListed>>();
  }
  return launch.template operator()<F32Tile<256, kGeneral, kListed>>();
}
template <bool kGeneral, bool kListed = false>
AttnStatus launch_decode_bf16(const AttnDecode& d, CUstream_st* stream) {
  const auto launch = [&]<class Tile>() { return launch_decode<Tile, MmaKernel<Tile>>(d, stream); };
  switch (tile_width(ATTN_BF16, d.problem.head_dim)) {
    case 64:
      return launch.template operator()<Bf16Tile<64, kGeneral, kListed>>();
    case 96:
      return launch.template operator()<Bf16Tile<96, kGeneral, kListed>>();
    case 128:
      return launch.template operator()<Bf16Tile<128, kGeneral, kListed>>();
  }
  return launch.template operator()<Bf16Tile<256, kGeneral, kListed>>();
}

}  // namespace tessera::attention::decode
