// Flagged values: 32 bits in which instructions pass on their results, without a barrier or a fence.
#pragma once

#include "kernels/cuda/decode_step/ring.cuh"

namespace tessera::cuda::decode_step {

// The upper half is a bf16 element, the lower half the flag of the instruction that wrote it.
__device__ __forceinline__ float value_of(uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }
__device__ __forceinline__ uint32_t flagged(float value, uint32_t flag) {
  return ptx::pack_bf16(0, value) | flag;
}
__device__ __forceinline__ bool has_flag(uint32_t packed, uint32_t flag) { return (packed & 0xffff) == flag; }
__device__ __forceinline__ bool has_flag(const uint4& w, uint32_t flag) {
  return (((w.x ^ flag) | (w.y ^ flag) | (w.z ^ flag) | (w.w ^ flag)) & 0xffff) == 0;
}
__device__ __forceinline__ uint2 elements_of(const uint4& w) {  // four bf16
  return {ptx::permute_bytes(w.x, w.y, 0x7632), ptx::permute_bytes(w.z, w.w, 0x7632)};
}

// Spins until the values of all lanes, which were loaded once already, have their flags. `ready` says whether
// a lane's have, `load` loads them again. All lanes leave the loop together: else they would then run one
// after another.
template <class Ready, class Load>
__device__ __forceinline__ void spin_until(Ready ready, Load load) {
  for (SpinLimit limit; __any_sync(kWholeWarp, !ready()); limit.count()) load();
}

}  // namespace tessera::cuda::decode_step
