// PTX of compute capability 8.0: one instruction, one wrapper. Sections are those of the PTX ISA 9.0.
// Whatever touches memory carries a "memory" clobber, so that the compiler moves it across no barrier.
#pragma once

#include <cstdint>

#include "kernels/base/ptx.cuh"

namespace tessera::ptx {

// ldmatrix_x4(), each matrix transposed on the way
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address)
               : "memory");
}

// 16 bytes from global to shared memory, past L1, without waiting. If not `valid`, zeros come, and nothing is
// read (9.7.9.25.3 cp.async)
__device__ __forceinline__ void cp_async_16(uint32_t shared_address, const void* from, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

// Closes a group of this thread's cp.async (9.7.9.25.3)
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are under way (9.7.9.25.3)
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Stores and loads by shared address (9.7.9.11 st, 9.7.9.8 ld)
__device__ __forceinline__ void store_shared(uint32_t shared_address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_address), "r"(value) : "memory");
}
__device__ __forceinline__ uint32_t load_shared(uint32_t shared_address) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared_address) : "memory");
  return v;
}

}  // namespace tessera::ptx
