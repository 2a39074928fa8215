// PTX of the persistent decode kernel, beside that of the attention kernels: one instruction, one wrapper.
// Sections: PTX ISA 9.0.
#pragma once

#include <cstdint>

#include "kernels/hopper/ptx.cuh"

namespace tessera::ptx {

// Flagged values that other multiprocessors write while this kernel runs: read and written where all see
// them, in no order with others (9.7.9.8 ld, 9.7.9.11 st)
__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* from) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_relaxed_uint2(const uint32_t* from) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_relaxed_uint4(const uint32_t* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void store_relaxed(uint32_t* to, uint32_t value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void store_relaxed(uint32_t* to, uint2 value) {
  asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(value.x), "r"(value.y)
               : "memory");
}
__device__ __forceinline__ void store_relaxed(uint32_t* to, uint4 value) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// For load_bytes_once(): what is read will not be read again soon (9.7.9.18 createpolicy)
__device__ __forceinline__ uint64_t policy_of_once() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void load_bytes_once(uint32_t to, const void* from, uint32_t bytes,
                                                uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
// The same address, of which the compiler no longer knows how to compute it again: it stays in a register.
template <class T>
__device__ __forceinline__ void opaque(T*& x) {
  asm volatile("mov.b64 %0, %0;" : "+l"(x));
}
// Asks for the line in L2 (9.7.9.17 prefetch)
__device__ __forceinline__ void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}

}  // namespace tessera::ptx
