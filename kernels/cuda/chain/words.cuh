// Words of 32 bits, in which stages pass on their results.
#pragma once

#include "kernels/cuda/chain/ring.cuh"

namespace tessera::cuda::chain {

// A word is an element as the upper half of a float, and below it the stamp of the stage that wrote it.
__device__ __forceinline__ float value_of(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
__device__ __forceinline__ uint32_t word_of(float value, uint32_t stamp) {
  return ptx::pack_bf16(0, value) | stamp;
}
__device__ __forceinline__ bool has_come(uint32_t word, uint32_t stamp) { return (word & 0xffff) == stamp; }
__device__ __forceinline__ bool has_come(const uint4& w, uint32_t stamp) {
  return (((w.x ^ stamp) | (w.y ^ stamp) | (w.z ^ stamp) | (w.w ^ stamp)) & 0xffff) == 0;
}
__device__ __forceinline__ uint2 elements_of(const uint4& w) {  // four bf16
  return {ptx::permute_bytes(w.x, w.y, 0x7632), ptx::permute_bytes(w.z, w.w, 0x7632)};
}

// Until all lanes' words, which were loaded once already, have come. `come` says whether a lane's have,
// `load` loads them again. All lanes leave the loop together: else they would run one after another then.
template <class Come, class Load>
__device__ __forceinline__ void wait_for_all(Come come, Load load) {
  for (Patience patience; __any_sync(kWholeWarp, !come()); patience.spend()) load();
}

}  // namespace tessera::cuda::chain
