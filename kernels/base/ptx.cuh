// PTX that every family of bf16 kernels uses: one instruction, one wrapper. Sections: PTX ISA 9.0.
#pragma once

#include <cstdint>

namespace tessera::ptx {

// 2^x, relative error 2e-7; 2^-inf = 0, and NaN stays NaN (9.7.3.22 ex2)
__device__ __forceinline__ float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2(x) to 2e-7, of x near 1 absolutely; of 0 -inf (9.7.3.21 lg2)
__device__ __forceinline__ float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, relative error 1e-7; 1 / inf = 0 (9.7.3.14 rcp)
__device__ __forceinline__ float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats rounded to bf16, `low` in the lower half (9.7.9.22 cvt: the first source goes to the upper half)
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Bytes of {high, low}, chosen by the nibbles of `selector`; with its bit 3 set, a nibble repeats the sign of
// the byte (9.7.9.7 prmt)
__device__ __forceinline__ uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
  return bytes;
}

// The larger of two bf16, in each half; NaN if one is (9.7.4.8 max)
__device__ __forceinline__ uint32_t max_bf16(uint32_t x, uint32_t y) {
  uint32_t larger;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(x), "r"(y));
  return larger;
}

// Four 8 x 8 matrices of 16-bit elements; lanes 8i .. 8i+7 give the rows of matrix i (9.7.14.5.15 ldmatrix)
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&d)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address)
               : "memory");
}

// ldmatrix_x4(), each matrix transposed on the way
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t shared_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address)
               : "memory");
}

// An 8 x 8 matrix of 16-bit elements, of which lane l holds row l/4, columns 2(l%4), +1: transposed
// (9.7.14.5.17 movmatrix)
__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// d += a b for a 16 x 16 (row), b 16 x 8 (col), d 16 x 8 in fp32 (9.7.14.5.14 mma). Thread l of a warp holds
//   a[0]: row l/4, columns 2(l%4), +1;  a[1]: row + 8;  a[2]: columns + 8;  a[3]: both
//   b0: rows 2(l%4), +1, column l/4;  b1: rows + 8
//   d[0], d[1]: row l/4, columns 2(l%4), +1;  d[2], d[3]: row + 8
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The next kernel of the stream may be started, if it asked to be, as soon as every CTA of this one has come
// here. It waits at wait_for_previous_kernel() until this one has ended and what it wrote can be read: before
// that, it reads nothing that an earlier kernel may write, and writes nothing. A kernel that did not ask, and
// any before 9.0, waits for the whole of this one before it starts (9.7.13.13 griddepcontrol)
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Loads by shared address (9.7.9.8 ld)
__device__ __forceinline__ float2 load_shared_float2(uint32_t shared_address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(shared_address) : "memory");
  return v;
}
__device__ __forceinline__ uint2 load_shared_uint2(uint32_t shared_address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(shared_address) : "memory");
  return v;
}
__device__ __forceinline__ int2 load_shared_int2(uint32_t shared_address) {
  const uint2 v = load_shared_uint2(shared_address);
  return {static_cast<int>(v.x), static_cast<int>(v.y)};
}
__device__ __forceinline__ uint4 load_shared_uint4(uint32_t shared_address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared_address)
               : "memory");
  return v;
}

// A load after which this thread sees what was written before the matching release (9.7.9.8 ld)
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* address) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
}

// *address += value; a thread that acquires it also sees what this thread saw before (9.7.13.7 red)
__device__ __forceinline__ void red_add_release(uint32_t* address, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

// Both at once; returns the value before (9.7.13.6 atom)
__device__ __forceinline__ uint32_t atomic_add_acq_rel(uint32_t* address, uint32_t value) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(address), "r"(value)
               : "memory");
  return before;
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

}  // namespace tessera::ptx
