// PTX of compute capability 9.0a: one instruction, one wrapper. Sections are those of the PTX ISA 9.0.
// Whatever touches memory carries a "memory" clobber, so that the compiler moves it across no barrier.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/base/ptx.cuh"

namespace tessera::ptx {

// ---- mbarrier: arrivals and bytes of a phase (9.7.13.15) ----

// A phase ends after `arrivals` arrivals, once all announced bytes have come; the next begins by itself.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers visible to TMA; __syncthreads() does so for other threads (9.7.13.4)
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Announces bytes that copies will bring in this phase, and arrives
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Arrives, as one of those that the barrier expects, when all cp.async of this thread have landed
// (9.7.13.15.17 cp.async.mbarrier.arrive)
__device__ __forceinline__ void cp_async_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Waits until the phase of this parity has ended; of a fresh barrier, phase 1 has.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- clusters: CTAs that run together and see each other's shared memory ----

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all CTAs of the cluster, which see afterwards what each wrote before (9.7.13.3)
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// An arrival at the barrier that stands at the same place in another CTA of the cluster (9.7.9.23 mapa)
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t barrier, uint32_t cta) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(cta)
      : "memory");
}

// ---- named barriers (9.7.13.1 barrier): `threads` counts those who wait and those who only arrive ----

__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Whether `says` holds for any of the threads that wait (bar.red)
__device__ __forceinline__ bool barrier_any(int id, int threads, bool says) {
  uint32_t any;
  asm volatile("{\n.reg .pred said, any;\nsetp.ne.u32 said, %3, 0;\nbar.red.or.pred any, %1, %2, said;\n"
               "selp.u32 %0, 1, 0, any;\n}"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(static_cast<uint32_t>(says))
               : "memory");
  return any != 0;
}
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- TMA (9.7.9.25) ----

// A tile into shared memory; its bytes count on `barrier`, those past the tensor's end (zeros) included.
__device__ __forceinline__ void load_tile(uint32_t to, const CUtensorMap& map, uint32_t barrier, int token,
                                          int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %3, "
      "%5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(token), "r"(head), "r"(batch)
      : "memory");
}
// A panel of a tile, from `column` of a head on
__device__ __forceinline__ void load_panel(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column,
                                           int token, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
      "%6, %7}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(token), "r"(0), "r"(head), "r"(batch)
      : "memory");
}
// A tile out of shared memory; what lies past the tensor's end is left out. In this thread's bulk group.
__device__ __forceinline__ void store_tile(const CUtensorMap& map, uint32_t from, int token, int head,
                                           int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %2, %4, %5}], [%1];" ::"l"(&map),
      "r"(from), "r"(0), "r"(token), "r"(head), "r"(batch)
      : "memory");
}
// A panel of a tile, to `column` of a head on
__device__ __forceinline__ void store_panel(const CUtensorMap& map, uint32_t from, int column, int token,
                                            int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(from), "r"(column), "r"(token), "r"(0), "r"(head), "r"(batch)
      : "memory");
}
// A box of a matrix, from `row` and `column` on, and back
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column,
                                         int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}
// The box is the first to leave L2 again, where what is read more than once stays.
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int column, int row) {
  constexpr uint64_t kEvictFirst = 0x12f0000000000000;  // a policy as createpolicy makes it (9.7.9.19)
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3}], [%1], %4;" ::"l"(
          &map),
      "r"(from), "r"(column), "r"(row), "l"(kEvictFirst)
      : "memory");
}
// A box into the CTAs of this cluster whose bits are set in `ctas`, at the same place of each. Its bytes
// count on the barrier at the same place there.
__device__ __forceinline__ void load_box_to(uint16_t ctas, uint32_t to, const CUtensorMap& map,
                                            uint32_t barrier, int column, int row) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "h"(ctas)
      : "memory");
}
// Contiguous bytes, multiples of 16 from and to multiples of 16
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_bytes(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}
// to[i] += from[i], in fp32, where `to` lies in L2
__device__ __forceinline__ void add_floats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
               "r"(from), "r"(bytes)
               : "memory");
}
// Closes this thread's group of stores and additions
__device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most kPending groups still read their shared memory
template <int kPending>
__device__ __forceinline__ void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until at most kPending groups are unfinished; what the others wrote is visible to this thread
template <int kPending>
__device__ __forceinline__ void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Orders this thread's ordinary writes to shared memory before what TMA or wgmma do after the next
// barrier: every thread that wrote needs it. Or it orders what others wrote before the barrier that this
// thread has passed before the wgmma that it takes part in (9.7.13.4)
__device__ __forceinline__ void fence_shared_for_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders what this thread sees of global memory before what its copies read and add to there (9.7.13.4)
__device__ __forceinline__ void fence_global_for_async() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// ---- registers and fragments ----

// Hands registers of a warpgroup back to the CTA's pool, or takes some; multiples of 8 (9.7.19.5 setmaxnreg)
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// Four 8 x 8 matrices of 16-bit elements; lanes 8i .. 8i+7 give the rows of matrix i (9.7.14.5.16 stmatrix)
__device__ __forceinline__ void stmatrix_x4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, float4 value) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x), "f"(value.y), "f"(value.z),
               "f"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, uint4 value) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y), "r"(value.z),
               "r"(value.w)
               : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, uint2 value) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(value.x), "r"(value.y) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t to, float2 value) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(value.x), "f"(value.y) : "memory");
}
__device__ __forceinline__ float load_shared_float(uint32_t from) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_shared_float4(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

// ---- wgmma (9.7.15): a warpgroup multiplies, m64nNk16, bf16 to fp32 ----

// Before the first wgmma, and whenever registers that one takes were touched (9.7.15.7.1)
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// The same value, of which the compiler no longer knows where it came from
__device__ __forceinline__ void opaque(uint32_t& x) { asm volatile("mov.b32 %0, %0;" : "+r"(x)); }
__device__ __forceinline__ void opaque(const char*& x) { asm volatile("" : "+l"(x)); }
// No instruction: the compiler may not move a use of these registers across.
template <int kCount>
__device__ __forceinline__ void hold(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void hold(uint32_t (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(x[i])::"memory");
}

// Which dimension of an operand in shared memory is contiguous: the one that is summed over, or the other
enum class Major { kSum, kOther };

// d (+)= A B^T with A 64 x 16, B N x 16. Thread t of a warpgroup, w = t / 32, l = t % 32, has in d[i]
//   row 16 w + l / 4 + 8 ((i >> 1) & 1),  column 8 (i >> 2) + 2 (l % 4) + (i & 1)
// and accumulators packed pairwise to bf16 are, four a step, an A operand in registers.
template <int kN>
struct Wgmma;

#define TESSERA_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TESSERA_F8(i) TESSERA_F4(i), TESSERA_F4(i + 4)
#define TESSERA_F32(i) TESSERA_F8(i), TESSERA_F8(i + 8), TESSERA_F8(i + 16), TESSERA_F8(i + 24)
// N, its N / 2 registers as operands and as text, and the numbers of the operands after those
#define TESSERA_WGMMA(N, REGISTERS, TEXT, X0, X1, X2, X3, X4, X5, X6)                                    \
  template <>                                                                                            \
  struct Wgmma<N> {                                                                                      \
    template <Major kA, Major kB>                                                                        \
    static __device__ __forceinline__ void shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " X2                                                \
                   ", 0;\n"                                                                              \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" TEXT "}, " X0 ", " X1    \
                   ", p, 1, 1, " X3 ", " X4 ";\n}"                                                       \
                   : REGISTERS                                                                           \
                   : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kA == Major::kOther),               \
                     "n"(kB == Major::kOther));                                                          \
    }                                                                                                    \
    template <Major kB>                                                                                  \
    static __device__ __forceinline__ void registers(float (&d)[N / 2], const uint32_t* a, uint64_t b,   \
                                                     bool add) {                                         \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " X5                                                \
                   ", 0;\n"                                                                              \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" TEXT "}, {" X0 ", " X1   \
                   ", " X2 ", " X3 "}, " X4 ", p, 1, 1, " X6 ";\n}"                                      \
                   : REGISTERS                                                                           \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)),     \
                     "n"(kB == Major::kOther));                                                          \
    }                                                                                                    \
  }

// clang-format off
#define TESSERA_REGISTERS_64 TESSERA_F32(0)
#define TESSERA_REGISTERS_72 TESSERA_F32(0), TESSERA_F4(32)
#define TESSERA_REGISTERS_80 TESSERA_F32(0), TESSERA_F8(32)
#define TESSERA_REGISTERS_128 TESSERA_F32(0), TESSERA_F32(32)
#define TESSERA_REGISTERS_192 TESSERA_REGISTERS_128, TESSERA_F32(64)
#define TESSERA_REGISTERS_256 TESSERA_REGISTERS_192, TESSERA_F32(96)
TESSERA_WGMMA(64, TESSERA_REGISTERS_64,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
    "%32", "%33", "%34", "%35", "%36", "%37", "%38");
TESSERA_WGMMA(80, TESSERA_REGISTERS_80,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39",
    "%40", "%41", "%42", "%43", "%44", "%45", "%46");
TESSERA_WGMMA(128, TESSERA_REGISTERS_128,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63",
    "%64", "%65", "%66", "%67", "%68", "%69", "%70");
TESSERA_WGMMA(192, TESSERA_REGISTERS_192,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
    "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "
    "%90, %91, %92, %93, %94, %95",
    "%96", "%97", "%98", "%99", "%100", "%101", "%102");
TESSERA_WGMMA(256, TESSERA_REGISTERS_256,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
    "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "
    "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, "
    "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, "
    "%126, %127",
    "%128", "%129", "%130", "%131", "%132", "%133", "%134");
// clang-format on

// FP8: A is 64 x 32 in e4m3 or e5m2, B is N x 32 in e4m3, both with the summed dimension contiguous; d as
// above. Of A in registers a thread has four words of four bytes: row l / 4, columns 4 (l % 4) to + 3; row
// + 8; columns + 16; both. Products are added with fewer bits than fp32 has: see docs/fp8.md.
template <int kN>
struct WgmmaFp8;

// N, its N / 2 registers as operands and as text, and the numbers of the operands after those
#define TESSERA_WGMMA_FP8(N, REGISTERS, TEXT, X0, X1, X2, X3, X4, X5)                                       \
  template <>                                                                                               \
  struct WgmmaFp8<N> {                                                                                      \
    template <bool kE5m2>                                                                                   \
    static __device__ __forceinline__ void shared(float (&d)[N / 2], uint64_t a, uint64_t b, bool add) {    \
      if constexpr (kE5m2) {                                                                                \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " X2                                                 \
                     ", 0;\n"                                                                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e5m2.e4m3 {" TEXT "}, " X0 ", " X1     \
                     ", p, 1, 1;\n}"                                                                        \
                     : REGISTERS                                                                            \
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                         \
      } else {                                                                                              \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " X2                                                 \
                     ", 0;\n"                                                                               \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" TEXT "}, " X0 ", " X1     \
                     ", p, 1, 1;\n}"                                                                        \
                     : REGISTERS                                                                            \
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                         \
      }                                                                                                     \
    }                                                                                                       \
    static __device__ __forceinline__ void registers(float (&d)[N / 2], const uint32_t* a, uint64_t b,      \
                                                     bool add) {                                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " X5                                                   \
                   ", 0;\n"                                                                                 \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" TEXT "}, {" X0 ", " X1      \
                   ", " X2 ", " X3 "}, " X4 ", p, 1, 1;\n}"                                                 \
                   : REGISTERS                                                                              \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));       \
    }                                                                                                       \
  }

// clang-format off
TESSERA_WGMMA_FP8(64, TESSERA_REGISTERS_64,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31",
    "%32", "%33", "%34", "%35", "%36", "%37");
TESSERA_WGMMA_FP8(72, TESSERA_REGISTERS_72,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35",
    "%36", "%37", "%38", "%39", "%40", "%41");
TESSERA_WGMMA_FP8(128, TESSERA_REGISTERS_128,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63",
    "%64", "%65", "%66", "%67", "%68", "%69");
TESSERA_WGMMA_FP8(192, TESSERA_REGISTERS_192,
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "
    "%72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "
    "%90, %91, %92, %93, %94, %95",
    "%96", "%97", "%98", "%99", "%100", "%101");
// clang-format on
#undef TESSERA_WGMMA_FP8
#undef TESSERA_REGISTERS_64
#undef TESSERA_REGISTERS_72
#undef TESSERA_REGISTERS_80
#undef TESSERA_REGISTERS_128
#undef TESSERA_REGISTERS_192
#undef TESSERA_REGISTERS_256
#undef TESSERA_WGMMA
#undef TESSERA_F32
#undef TESSERA_F8
#undef TESSERA_F4

}  // namespace tessera::ptx
