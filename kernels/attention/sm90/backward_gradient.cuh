// dQ of a step, from the registers of a warpgroup to send_gradients() in backward_move.cuh; named barriers.
#pragma once

#include "kernels/attention/sm90/backward_args.cuh"

namespace tessera::attention::sm90 {

// Named barriers: 0 is __syncthreads()
__device__ __forceinline__ void sync_warpgroup(int group) { ptx::barrier_sync(1 + group, kWarpgroup); }
template <class Shape>
__device__ __forceinline__ void sync_warpgroups() {
  ptx::barrier_sync(1 + Shape::kGroups, Shape::kGroups * kWarpgroup);
}
// Whether any of their threads says so
template <class Shape>
__device__ __forceinline__ bool any_of_warpgroups(bool says) {
  return ptx::barrier_any(1 + Shape::kGroups, Shape::kGroups * kWarpgroup, says);
}

// Warpgroups take turns at the powers, for which there are only 16 lanes a multiprocessor: so one multiplies
// while the other does its powers.
template <class Shape>
__device__ __forceinline__ void take_turn(int group) {
  ptx::barrier_sync(2 + Shape::kGroups + group, 2 * kWarpgroup);
}
template <class Shape>
__device__ __forceinline__ void pass_turn(int group) {
  ptx::barrier_arrive(2 + Shape::kGroups + (group ^ 1), 2 * kWarpgroup);
}

// The role of a key block in the dQ of a query tile: it adds to the sum, is the last to do so, or the only
// one
enum class Role { kAdds, kFinishes, kAlone };

// A warpgroup's part of dQ on its way to send_gradients
template <class Shape>
struct QueryGradient {
  static constexpr int kCount = Shape::kPartFloats / kWarpgroup;
  using Memory = BackwardMemory<Shape>;

  Memory memory;
  int group;
  uint32_t added = 0;  // parities of others_there, a bit a slot

  // Not finished: into shared memory in the order of the registers. Finished: with the sum of the others, if
  // there are any, scaled, as bf16. Phases of others_there are counted apart: not every part has others.
  __device__ __forceinline__ void put(float (&dq)[kCount], RingPlace<2> at_part, Role role, float scale) {
    const uint32_t part = memory.part(group, at_part.slot), at = part + threadIdx.x % kWarpgroup * 16;
    constexpr int kApart = kWarpgroup * 16;
    ptx::mbarrier_wait(memory.part_empty(group, at_part.slot), at_part.turn ^ 1);
    if (role != Role::kAdds) {
      if (role == Role::kFinishes) {
        ptx::mbarrier_wait(memory.others_there(group, at_part.slot), added >> at_part.slot & 1);
        added ^= 1u << at_part.slot;
#pragma unroll
        for (int i = 0; i < kCount / 4; ++i) {
          const float4 sum = ptx::load_shared_float4(at + i * kApart);
          dq[4 * i] += sum.x, dq[4 * i + 1] += sum.y, dq[4 * i + 2] += sum.z, dq[4 * i + 3] += sum.w;
        }
        sync_warpgroup(group);  // all have read what is now overwritten
      }
#pragma unroll
      for (float& x : dq) x *= scale;
      uint32_t packed[kCount / 2];
      pack(packed, dq);
      store_fragment(typename Memory::Part{part}, 0, 0, packed);
    } else {
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        ptx::store_shared(at + i * kApart, float4{dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]});
      }
    }
  }
  // Later, when the stores are done and the fence has little to wait for
  __device__ __forceinline__ void hand_over(RingPlace<2> at_part) const {
    ptx::fence_shared_for_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(memory.part_full(group, at_part.slot));
  }
};

}  // namespace tessera::attention::sm90
