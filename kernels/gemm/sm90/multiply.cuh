// The main loop of a warpgroup in GEMMs whose warpgroups share a tile.
#pragma once

#include "kernels/hopper/ring.cuh"
#include "kernels/hopper/sizes.h"

namespace tessera::gemm {

// d = a b for 64 rows of d, over `steps` slots of a ring from `at` on, each with kBlockK of the summed
// dimension. a_at(slot, k) and b_at(slot, k) describe operands. A slot is released in all CTAs of the
// cluster, each of which has filled a part of it.
template <ptx::Major kA, ptx::Major kB, int kColumns, int kBlockK, int kCluster, int kSlots, class A, class B>
__device__ __forceinline__ void multiply(float (&d)[kColumns / 2], const hopper::Ring<kSlots>& ring,
                                         hopper::RingPlace<kSlots>& at, int steps, int thread, A&& a_at,
                                         B&& b_at) {
  hopper::RingPlace<kSlots> before = at;
  const auto release = [&] {
    if (thread < kCluster) ring.release_at(before, thread);
  };
#pragma unroll
  for (float& sum : d) sum = 0;
  ptx::hold(d);
  for (int step = 0; step < steps; ++step) {
    ring.wait_full(at);
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < kBlockK; k += hopper::kStepK)
      ptx::Wgmma<kColumns>::template shared<kA, kB>(d, a_at(at.slot, k), b_at(at.slot, k), true);
    ptx::wgmma_commit();
    if (step > 0) {
      ptx::wgmma_wait<1>();
      release();
    }
    before = at;
    at.next();
  }
  ptx::wgmma_wait<0>();
  release();
  ptx::hold(d);
}

}  // namespace tessera::gemm
