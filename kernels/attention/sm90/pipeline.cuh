// A ring of stages in shared memory that one thread fills through the copy engine and warpgroups empty.
#pragma once

#include "kernels/attention/sm90/ptx.cuh"

namespace tessera::attention::sm90 {

// Where somebody stands in a ring: everyone who uses it walks it alone, in the same order.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t turn = 0;  // parity of how often the ring has been gone round

  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, turn ^= 1;
  }
  // Where next() came from, of a ring of two
  __device__ __forceinline__ RingPlace before() const {
    static_assert(kStages == 2);
    return {stage ^ 1, turn ^ static_cast<uint32_t>(stage ^ 1)};
  }
};

// Two mbarriers a stage: full (one arrival, by the filler, and the bytes it announces) and empty (one arrival
// a reader, after its last read).
template <int kStages>
struct Ring {
  static constexpr int kBytes = 2 * kStages * 8;
  using Place = RingPlace<kStages>;

  uint32_t base;  // shared address, a multiple of 8

  // By one thread, before fence_mbarrier_init() and __syncthreads()
  __device__ __forceinline__ void init(uint32_t readers) const {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(full(stage), 1);
      ptx::mbarrier_init(empty(stage), readers);
    }
  }
  // The filler: waits until the stage may be overwritten (at once in the first round), ...
  __device__ __forceinline__ void wait_empty(Place at) const {
    ptx::mbarrier_wait(empty(at.stage), at.turn ^ 1);
  }
  // ... announces `bytes`, and gets the barrier that the copies must name.
  __device__ __forceinline__ uint32_t announce(Place at, uint32_t bytes) const {
    ptx::mbarrier_arrive_expect(full(at.stage), bytes);
    return full(at.stage);
  }
  __device__ __forceinline__ uint32_t begin_fill(Place at, uint32_t bytes) const {
    wait_empty(at);
    return announce(at, bytes);
  }
  __device__ __forceinline__ void wait_full(Place at) const { ptx::mbarrier_wait(full(at.stage), at.turn); }
  // By one thread of each reader, when all of its threads have read
  __device__ __forceinline__ void release(Place at) const { ptx::mbarrier_arrive(empty(at.stage)); }
  // The same in the ring of another CTA of the cluster, whose filler writes to this CTA too
  __device__ __forceinline__ void release_at(Place at, uint32_t cta) const {
    ptx::mbarrier_arrive_at(empty(at.stage), cta);
  }

 private:
  __device__ __forceinline__ uint32_t full(int stage) const { return base + stage * 8; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return base + (kStages + stage) * 8; }
};

}  // namespace tessera::attention::sm90
