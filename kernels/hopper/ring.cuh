// A ring of slots in shared memory: one thread fills them by TMA, warpgroups read them (a pipeline).
#pragma once

#include "kernels/hopper/ptx.cuh"

namespace tessera::hopper {

// A place in a ring. Each warp or warpgroup that uses the ring has its own, and all walk in the same order.
template <int kSlots>
struct RingPlace {
  int slot = 0;
  uint32_t turn = 0;  // parity of the number of rounds

  __device__ __forceinline__ void next() {
    if (++slot == kSlots) slot = 0, turn ^= 1;
  }
  // The place before next(), in a ring of two
  __device__ __forceinline__ RingPlace before() const {
    static_assert(kSlots == 2);
    return {slot ^ 1, turn ^ static_cast<uint32_t>(slot ^ 1)};
  }
};

// Each slot has two mbarriers: full (one arrival of each filler, and the bytes that one of them announces)
// and empty (one arrival of each reader, after its last read).
template <int kSlots>
struct Ring {
  static constexpr int kBytes = 2 * kSlots * 8;
  using Place = RingPlace<kSlots>;

  uint32_t base;  // shared address, a multiple of 8

  // By one thread, before fence_mbarrier_init() and __syncthreads()
  __device__ __forceinline__ void init(uint32_t readers, uint32_t fillers = 1) const {
    for (int slot = 0; slot < kSlots; ++slot) {
      ptx::mbarrier_init(full(slot), fillers);
      ptx::mbarrier_init(empty(slot), readers);
    }
  }
  // The filler: waits until the slot may be overwritten (at once in the first round), ...
  __device__ __forceinline__ void wait_empty(Place at) const {
    ptx::mbarrier_wait(empty(at.slot), at.turn ^ 1);
  }
  // ... announces `bytes`, and gets the barrier that the copies must name.
  __device__ __forceinline__ uint32_t announce(Place at, uint32_t bytes) const {
    ptx::mbarrier_arrive_expect(full(at.slot), bytes);
    return full(at.slot);
  }
  __device__ __forceinline__ uint32_t begin_fill(Place at, uint32_t bytes) const {
    wait_empty(at);
    return announce(at, bytes);
  }
  // By every thread that fills by cp.async, each of which is a filler: behind its copies to the slot
  __device__ __forceinline__ void fill_asynchronously(Place at) const { ptx::cp_async_arrive(full(at.slot)); }
  __device__ __forceinline__ void wait_full(Place at) const { ptx::mbarrier_wait(full(at.slot), at.turn); }
  // By one thread of each reader, when all of its threads have read
  __device__ __forceinline__ void release(Place at) const { ptx::mbarrier_arrive(empty(at.slot)); }
  // The same in the ring of another CTA of the cluster, whose filler writes to this CTA too
  __device__ __forceinline__ void release_at(Place at, uint32_t cta) const {
    ptx::mbarrier_arrive_at(empty(at.slot), cta);
  }

 private:
  __device__ __forceinline__ uint32_t full(int slot) const { return base + slot * 8; }
  __device__ __forceinline__ uint32_t empty(int slot) const { return base + (kSlots + slot) * 8; }
};

}  // namespace tessera::hopper
