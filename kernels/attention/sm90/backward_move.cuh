// The backward's warpgroup that moves data: one warp loads, the others send dQ.
#pragma once

#include "kernels/attention/sm90/backward_work_tile.cuh"
#include "kernels/base/ptx.cuh"

namespace tessera::attention::sm90 {

// One thread: takes tickets and fills the rings.
template <class Shape>
__device__ __forceinline__ void load(const BackwardArgsOf<Shape>& a) {
  using Memory = BackwardMemory<Shape>;
  const Memory memory;
  RingPlace<1> keys_at;
  RingPlace<Shape::kSlots> at;

  for (;; keys_at.next()) {
    uint32_t ticket = atomicAdd(a.counters, 1u);
    bool any = ticket < a.work_tiles;
    auto work = any ? WorkTile<Shape>::of(ticket, a) : WorkTile<Shape>::none();
    if constexpr (Shape::kListed) {
      while (any && work.key_block < 0) {
        ticket = atomicAdd(a.counters, 1u);
        any = ticket < a.work_tiles;
        work = any ? WorkTile<Shape>::of(ticket, a) : WorkTile<Shape>::none();
      }
    }
    memory.k_ring().wait_empty(keys_at);  // and nobody looks up the last work any more
    work.publish(memory.work());
    if (!any) {
      memory.k_ring().announce(keys_at, 0);
      return;
    }
    const int first_k = work.key_block * Shape::kBlockK;
    load_tile<Shape::kWhole>(memory.k(), a.k, memory.k_ring().announce(keys_at, Memory::Keys::kBytes),
                             first_k, work.kv_head, work.batch);
#pragma unroll 1  // few registers are left for this warp
    for (QueryWalk<Shape> walk(work, a); !walk.ended(); walk.next(a), at.next()) {
      int tile = walk.tile;
      if constexpr (Shape::kListed) {
        const auto step = ListedStep::of(WorkTile<Shape>::published(memory.work(), a), walk.tile, a);
        tile = step.tile;
        memory.q_ring().wait_empty(at);
        step.publish(memory.adders(at.slot));
      } else if constexpr (Shape::kAnyMask) {
        const Adders adders = adders_of(walk.tile, work.batch, a);
        memory.q_ring().wait_empty(at);
        adders.publish(memory.adders(at.slot));
      }
      const int first_q = tile * Shape::kBlockQ;
      const uint32_t q_full = memory.q_ring().begin_fill(at, Memory::Queries::kBytes + Memory::kRowsBytes);
      load_tile<Shape::kWhole>(memory.q(at.slot), a.q, q_full, first_q, walk.head, work.batch);
      const int64_t index = walk.index_of(tile, work.batch, a);
      ptx::load_bytes(memory.rows(at.slot), a.row_statistics + index * (2 * Shape::kBlockQ),
                      Memory::kRowsBytes, q_full);
      if (walk.begins(a)) {
        const auto again = WorkTile<Shape>::published(memory.work(), a);  // registers are short
        load_tile<Shape::kWhole>(memory.v(), a.v, memory.v_ring().begin_fill(keys_at, Memory::Keys::kBytes),
                                 again.key_block * Shape::kBlockK, again.kv_head, work.batch);
      }
      const uint32_t dout_full = memory.dout_ring().begin_fill(at, Memory::Queries::kBytes);
      load_tile<Shape::kWhole>(memory.dout(at.slot), a.dout, dout_full, first_q, walk.head, work.batch);
    }
  }
}

// One thread of a warp sends parts of dQ out, when it is their turn.
//
// The first adder stores, the others add: by TMA, in whose proxy they follow one another. When a
// copy is complete (bulk_wait) its thread sees it, and by releasing the counter lets the next adder's thread
// see it, which then orders it before its own copy by a proxy fence. For the last adder, the sum of the
// others is brought into shared memory for the warpgroup to add, and what is sent is dQ in bf16.
//
// A warp sends the parts of one warpgroup. But from the wait for its turn to the release of its counter, a
// part takes longer than a step at head dim 128: there these warps send what is in the first slot, and a
// third one sends the second slot of both warpgroups.
template <class Shape>
struct Sender {
  static constexpr int kPartBytes = BackwardMemory<Shape>::kPartBytes;
  static constexpr bool kBySlot = Shape::kSenders > Shape::kGroups;
  static_assert(Shape::kGroups == 2 && Shape::kSlots == 2);  // three warps share the parts of these

  const BackwardArgsOf<Shape>& a;
  const BackwardMemory<Shape> memory{};
  RingPlace<Shape::kSlots> at{};

  // Sends the parts of warpgroups [kFirst, kEnd); by slot, those of one warpgroup in the first slot, of two
  // in the second.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void run() {
    constexpr int kSlot = kEnd - kFirst - 1;
    for (RingPlace<1> keys_at;; keys_at.next()) {
      memory.k_ring().wait_full(keys_at);
      const auto work = WorkTile<Shape>::published(memory.work(), a);
      memory.k_ring().release(keys_at);
      if (work.key_block < 0) break;
      QueryWalk<Shape> walk(work, a);
      Adders next{};  // read a step ahead: it takes a while
      [[maybe_unused]] ListedStep next_step{};
      if constexpr (Shape::kListed) {
        next_step = ListedStep::of(work, walk.tile, a);
      } else if constexpr (Shape::kAnyMask) {
        next = adders_of(walk.tile, work.batch, a);
      }
#pragma unroll 1
      for (; !walk.ended(); walk.next(a), at.next()) {
        Turn turn{};
        int tile = walk.tile;
        if constexpr (Shape::kListed) {
          turn = next_step.turn, tile = next_step.tile;
          auto after = walk;
          after.next(a);
          if (!after.ended()) next_step = ListedStep::of(work, after.tile, a);
        } else if constexpr (Shape::kAnyMask) {
          turn = next.turn_of(walk.adds_as);
          auto after = walk;
          after.next(a);
          if (!after.ended()) next = adders_of(after.tile, work.batch, a);
        } else {
          turn = turn_of<Shape>(walk.tile, walk.adds_as, a);
        }
        if (kBySlot && at.slot != kSlot) continue;
        const int index = walk.index_of(tile, work.batch, a) * Shape::kGroups;
        const int slot = kBySlot ? kSlot : at.slot;
#pragma unroll
        for (int group = kFirst; group < kEnd; ++group) prepare(group, slot, index + group, turn);
#pragma unroll
        for (int group = kFirst; group < kEnd; ++group) {
          send(group, slot, index + group, turn, tile * Shape::kBlockQ + group * Shape::kPartsApartQ,
               walk.head, work.batch);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ float* sums_of(int index) const {
    return a.dq_sums + static_cast<int64_t>(index) * Shape::kPartFloats;
  }
  // Waits for the turn of a part, and asks for the sum of the others if it is the last one
  __device__ __forceinline__ void prepare(int group, int slot, int index, Turn turn) const {
    if (turn.before == 0) return;
    while (ptx::load_acquire(a.counters + 1 + index) != static_cast<uint32_t>(turn.before)) {
    }
    ptx::fence_global_for_async();
    if (turn.finishes()) {  // the place is free: what was there before has been read
      const uint32_t others_there = memory.others_there(group, slot);
      ptx::mbarrier_arrive_expect(others_there, kPartBytes);
      ptx::load_bytes(memory.part(group, slot), sums_of(index), kPartBytes, others_there);
    }
  }
  __device__ __forceinline__ void send(int group, int slot, int index, Turn turn, int first_q, int head,
                                       int batch) const {
    const uint32_t part = memory.part(group, slot);
    ptx::mbarrier_wait(memory.part_full(group, slot), at.turn);
    if (turn.finishes()) {
      ptx::store_tile(a.dq[group * Shape::kPartsApartD / Shape::kPart], part, first_q, head, batch);
    } else if (turn.before == 0) {
      ptx::store_bytes(sums_of(index), part, kPartBytes);
    } else {
      ptx::add_floats(sums_of(index), part, kPartBytes);
    }
    ptx::bulk_commit();
    ptx::bulk_wait_read<0>();
    ptx::mbarrier_arrive(memory.part_empty(group, slot));
    if (!turn.finishes()) {
      ptx::bulk_wait<0>();
      ptx::red_add_release(a.counters + 1 + index, 1);
    }
  }
};

}  // namespace tessera::attention::sm90
