// Backward attention with wgmma: the main kernel.
//
//   for a block of 128 keys of one batch and key/value head, 64 a warpgroup:    K, V [128, D]
//     dK = dV = 0
//     for each query head of the work tile and every query tile i that sees a key of the block, upwards:
//                                                                   Q_i, dO_i [Bq, D], L_i, delta_i [Bq]
//       P^T  = 2^(c K Q_i^T - L_i), 0 where masked                                  [128, Bq]
//       dS^T = P^T o (V dO_i^T - delta_i)                                           [128, Bq]
//       dV  += P^T dO_i,  dK += dS^T Q_i                                            [128, D]
//       dQ_i += dS K, a sum over CTAs: backward_work_tile.cuh, backward_move.cuh         [Bq, D]
//     dK *= scale (and so is dQ, where it is finished)
//   where c = scale log2(e), L = LSE log2(e), and delta = rowsum(dO o O) = rowsum(P o dP).
//
// With the scores transposed, P^T and dS^T are, packed, operands in registers of dV and dK. Only dS passes
// through shared memory, since dQ sums over the keys of both warpgroups.
//
// Step i, of a warpgroup, so that products run under the arithmetic (of the other warpgroup as well, which
// is half a step away since the two take turns at the powers):
//   start S_i, dK of step i - 1, dQ of step i - 2;  publish dS of step i - 1, which lay in registers
//   S_i: powers, P_i in place of dS
//   start dP_i, dV of step i;  put dQ of step i - 2 where it is sent from
//   dP_i: dS_i in place of P_i
// After the last step follow what lags behind, and dK, dV through shared memory. 192 of 240 registers hold
// products and fragments: S and dP share 64 (D = 64) or 32, P and dS half as many, dQ has 32, dK and dV D.
#pragma once

#include "kernels/attention/sm90/backward_gradient.cuh"
#include "kernels/attention/sm90/backward_move.cuh"
#include "kernels/attention/sm90/backward_scores.cuh"

namespace tessera::attention::sm90 {

// One of the warpgroups that multiply
template <class Shape>
struct BackwardConsumer {
  using Memory = BackwardMemory<Shape>;
  static constexpr int kBlockQ = Shape::kBlockQ, kHeadDim = Shape::kHeadDim, kBlockK = Shape::kBlockK;

  // What is known of a key block, and its sums
  struct Block {
    QueryWalk<Shape> walk;
    int first_k;             // the warpgroup's first key
    int mask_before;         // tiles that begin before this query have something to mask
    Span whole;              // with kAnyMask: queries that see all keys of the warpgroup
    Role role, role_before;  // in dQ of the last step, of the one before
    float dk[kHeadDim / 2], dv[kHeadDim / 2], dq[QueryGradient<Shape>::kCount];
    uint32_t p[kBlockQ / 4];  // P^T, then dS^T
  };

  const BackwardArgsOf<Shape>& a;
  const int group;
  Memory memory;
  const bool leader = threadIdx.x % kWarpgroup == 0, warp_leader = threadIdx.x % 32 == 0;
  const typename Shape::Score score = Shape::Score::positive(a.score);
  const int row = group * kWarpgroupRows;  // of the warpgroup's first key in K, V and dS^T
  QueryGradient<Shape> gradient{memory, group};
  RingPlace<1> keys_at;
  RingPlace<2> at;  // of this step's Q, dO, dS and dQ

  __device__ __forceinline__ BackwardConsumer(const BackwardArgsOf<Shape>& args, int warpgroup)
      : a(args), group(warpgroup) {}

  // What dQ and dK are multiplied by
  __device__ __forceinline__ float gradient_scale() const {
    const float derivative = Shape::Score::derivative(a.score);
    return Shape::kDropout ? derivative * a.dropout.scale() : derivative;
  }
  __device__ __forceinline__ void wait_ds(RingPlace<2> of) const {
    ptx::mbarrier_wait(memory.ds_full(of.slot), of.turn);
  }
  __device__ __forceinline__ void wait_ds_place(RingPlace<2> of) const {
    ptx::mbarrier_wait(memory.ds_empty(of.slot), of.turn ^ 1);
  }
  __device__ __forceinline__ void release_ds(RingPlace<2> of) const {
    if (warp_leader) ptx::mbarrier_arrive(memory.ds_empty(of.slot));
  }
  __device__ __forceinline__ void publish_ds() const {
    ptx::fence_shared_for_async();
    __syncwarp();
    if (warp_leader) ptx::mbarrier_arrive(memory.ds_full(at.before().slot));
  }
  // Begins dK of the step before
  __device__ __forceinline__ void begin_dk(Block& b) const {
    multiply_registers_rows<kHeadDim, kBlockQ>(b.dk, b.p, memory.q(at.before().slot), 0);
    ptx::wgmma_commit();
  }
  __device__ __forceinline__ void begin_dq(Block& b, RingPlace<2> of) const {
    multiply_cols_cols<Shape::kPart, kBlockK>(b.dq, memory.ds(of.slot), group * Shape::kPartsApartQ,
                                              memory.k(), group * Shape::kPartsApartD);
    ptx::wgmma_commit();
  }

  __device__ __forceinline__ void begin_block(Block& b, const WorkTile<Shape>& work) const {
    b.first_k = work.key_block * kBlockK + row;
    if constexpr (Shape::kAnyMask) {
      const Mask mask = a.mask.of_sequence(work.batch);
      b.whole = {0, 0};
      if (b.first_k + kWarpgroupRows <= a.kv_tokens)
        b.whole = {mask.queries_of(b.first_k + kWarpgroupRows - 1).begin, mask.queries_of(b.first_k).end};
    }
    // Causal: keys past the end are after all queries, so that the diagonal's mask takes care of them.
    b.mask_before = a.causal                                   ? b.first_k + kWarpgroupRows - 1
                    : b.first_k + kWarpgroupRows > a.kv_tokens ? 0x7fffffff
                                                               : 0;
#pragma unroll
    for (float& x : b.dk) x = 0;
  }

  // kBefore: how many steps went before, 2 for more. Compiled for each, since
  // ptxas gives up on wgmma under conditions.
  template <int kBefore>
  __device__ __forceinline__ void step(Block& b) {
    float x[kBlockQ / 2];      // S^T, P^T; dP^T, dS^T
    ptx::opaque(memory.base);  // else descriptors of all steps are computed ahead, and fill the registers
    begin_scores<kBefore>(b, x);
    const ColumnStatistics log2_sum_exp(memory.rows(at.slot));
    Span seeing[2];
    bool masked = false;
    if constexpr (Shape::kAnyMask) {
      masked = !b.whole.contains({query_tile(b) * kBlockQ, (query_tile(b) + 1) * kBlockQ});
      if (kEarlySpans && masked) find_seeing(b, seeing);
    }
    KeyMasks<kBlockQ> masks;
    if constexpr (Shape::kDropout) {  // while the products are under way
      const int batch =
          WorkTile<Shape>::published(memory.work(), a).batch;  // read again: registers are short
      masks.draw(a.dropout, batch, b.walk.head, b.walk.tile * kBlockQ,
                 b.first_k + 16 * (threadIdx.x / 32 % kWarpsPerGroup));
      ptx::hold(masks.words);
    }
    [[maybe_unused]] float bias[2];
    if constexpr (Shape::Score::kBiased && kEarlyBias) {
      find_bias(b, bias);
      ptx::hold(bias);
    }
    ptx::wgmma_wait<(kBefore > 1)>();
    ptx::hold(x);
    if constexpr (kBefore > 0) {
      ptx::hold(b.dk);
      ptx::hold(b.p);
      if (warp_leader) memory.q_ring().release(at.before());
    }
    take_turn<Shape>(group);
    const int first_q = query_tile(b) * kBlockQ;
    cap_scores<typename Shape::Score>(x, a.cap);
    if constexpr (Shape::kAnyMask) {
      if (masked) {
        if constexpr (!kEarlySpans) find_seeing(b, seeing);
        mask_transposed(x, first_q, seeing);
      }
    } else {
      if (first_q < b.mask_before) mask_transposed(x, b.first_k, first_q, a.causal, a.kv_tokens);
    }
    if constexpr (Shape::Score::kBiased) {
      if constexpr (!kEarlyBias) find_bias(b, bias);
      scores_to_probabilities(x, score, log2_sum_exp, bias);
    } else {
      scores_to_probabilities(x, score, log2_sum_exp);
    }
    pack(b.p, x);
    if constexpr (Shape::kDropout) masks.drop(b.p);
    ptx::hold(b.p);
    // The loops of these waits also keep the compiler from moving the powers behind what follows.
    memory.dout_ring().wait_full(at);
    if constexpr (kBefore == 0) memory.v_ring().wait_full(keys_at);
    pass_turn<Shape>(group);
    if constexpr (kBefore > 1) {
      ptx::wgmma_wait<0>();
      ptx::hold(b.dq);
      release_ds(at.before().before());
    }
    begin_probability_gradients<kBefore>(b, x);
    if constexpr (kBefore > 1) gradient.put(b.dq, at.before().before(), b.role_before, gradient_scale());
    const ColumnStatistics delta(memory.rows(at.slot) + kBlockQ * 4);
    Adders adders{};
    [[maybe_unused]] PublishedStep published{};
    if constexpr (Shape::kListed)
      published = PublishedStep::at(memory.adders(at.slot));
    else if constexpr (Shape::kAnyMask)
      adders = Adders::published(memory.adders(at.slot));
    ptx::wgmma_wait<0>();
    ptx::hold(x);
    ptx::hold(b.dv);
    ptx::hold(b.p);
    if (warp_leader) memory.dout_ring().release(at);
    if constexpr (Shape::Score::kCapped) {
      capped_score_gradients(b.p, x, delta, memory.rows(at.slot), a.cap);
    } else {
      score_gradients<Shape::kDropout>(b.p, x, delta);
    }
    if constexpr (kBefore > 1) gradient.hand_over(at.before().before());
    ptx::hold(b.p);

    b.role_before = b.role;
    if constexpr (Shape::kListed)
      b.role = role_of(published.finishes, published.last);
    else
      note_role(b, adders);
    at.next(), b.walk.next(a);
  }
  // The queries that see the thread's two keys: read while the scores are under way, where registers allow
  static constexpr bool kEarlySpans = kHeadDim == 64 && !Shape::Score::kBiased;
  __device__ __forceinline__ void find_seeing(const Block& b, Span (&seeing)[2]) const {
    const int batch = WorkTile<Shape>::published(memory.work(), a).batch;  // read again: registers are short
    const Mask mask = a.mask.of_sequence(batch);
    seeing[0] = seeing_of(b.first_k, 0, mask), seeing[1] = seeing_of(b.first_k, 1, mask);
  }

  static constexpr bool kEarlyBias = kHeadDim == 64 && !Shape::kAnyMask;  // as kEarlySpans
  // ALiBi of the thread's two keys and the first query of the tile, log2(e) times
  __device__ __forceinline__ void find_bias(const Block& b, float (&bias)[2]) const {
    auto head = static_cast<uint32_t>(b.walk.head);
    if constexpr (!kEarlyBias)
      ptx::opaque(head);  // else it is computed ahead of the step, and takes registers
    const float slope = a.alibi.slope(head) * kLog2e;
    const int apart = b.first_k + lane_row() - (b.walk.tile * kBlockQ + a.query_offset);
    bias[0] = slope * static_cast<float>(apart), bias[1] = slope * static_cast<float>(apart + 8);
  }

  // Notes the role in dQ of the step that ends
  __device__ __forceinline__ void note_role(Block& b, Adders adders) const {
    Turn turn{};
    if constexpr (Shape::kAnyMask) {
      turn = adders.turn_of(b.walk.adds_as);
    } else {
      turn = turn_of<Shape>(b.walk.tile, b.walk.adds_as, a);
    }
    b.role = role_of(turn.finishes(), turn.last);
  }
  static __device__ __forceinline__ Role role_of(bool finishes, int last) {
    return !finishes ? Role::kAdds : last > 0 ? Role::kFinishes : Role::kAlone;
  }
  // Of the step at `at`, when its Q is there
  __device__ __forceinline__ int query_tile(const Block& b) const {
    if constexpr (Shape::kListed) {
      return PublishedStep::at(memory.adders(at.slot)).tile;
    } else {
      return b.walk.tile;
    }
  }
  // S of this step, dK of the one before, dQ of the one before that
  template <int kBefore>
  __device__ __forceinline__ void begin_scores(Block& b, float (&s)[kBlockQ / 2]) const {
    memory.q_ring().wait_full(at);
    if constexpr (kBefore > 1) wait_ds(at.before().before());
    if constexpr (kBefore > 0) {
      wait_ds_place(at.before());
      ptx::hold(b.p);
      ptx::hold(b.dk);
    }
    ptx::wgmma_fence();
    multiply_rows_rows<kBlockQ>(s, memory.k(), row, memory.q(at.slot), 0);
    ptx::wgmma_commit();
    if constexpr (kBefore > 0) {
      store_fragment(memory.ds(at.before().slot), row, 0, b.p);
      begin_dk(b);
      if constexpr (kBefore > 1) begin_dq(b, at.before().before());
      publish_ds();
    }
  }
  // dP and dV
  template <int kBefore>
  __device__ __forceinline__ void begin_probability_gradients(Block& b, float (&dp)[kBlockQ / 2]) const {
    if constexpr (kBefore > 0) ptx::hold(b.dv);
    ptx::wgmma_fence();
    multiply_rows_rows<kBlockQ>(dp, memory.v(), row, memory.dout(at.slot), 0);
    multiply_registers_rows<kHeadDim, kBlockQ>(b.dv, b.p, memory.dout(at.slot), 0, 0, kBefore > 0);
    ptx::wgmma_commit();
  }

  // What lags behind the last step: its dK and dQ, and dQ of the one before. Returns the block's work,
  // looked up once more rather than kept in registers.
  __device__ __forceinline__ WorkTile<Shape> catch_up(Block& b) {
    wait_ds_place(at.before());
    store_fragment(memory.ds(at.before().slot), row, 0, b.p);
    publish_ds();
    const auto done = WorkTile<Shape>::published(memory.work(), a);
    if (done.steps(a) > 1) {
      wait_ds(at.before().before());
      ptx::wgmma_fence();
      begin_dq(b, at.before().before());
      ptx::wgmma_wait<0>();
      ptx::hold(b.dq);
      release_ds(at.before().before());
      gradient.put(b.dq, at.before().before(), b.role_before, gradient_scale());
      gradient.hand_over(at.before().before());
    }
    wait_ds(at.before());
    ptx::hold(b.p);
    ptx::hold(b.dk);
    ptx::hold(b.dq);
    ptx::wgmma_fence();
    begin_dq(b, at.before());
    begin_dk(b);
    ptx::wgmma_wait<1>();
    ptx::hold(b.dq);
    release_ds(at.before());
    gradient.put(b.dq, at.before(), b.role, gradient_scale());
    gradient.hand_over(at.before());
    ptx::wgmma_wait<0>();
    ptx::hold(b.dk);
    ptx::hold(b.p);
    if (warp_leader) memory.q_ring().release(at.before());
    return done;
  }

  // dK and dV of a warpgroup that wait in memory: each thread finds what the same thread of another CTA had
  // in these registers. index: of the warpgroup, among all that wait
  static constexpr int kQuads = kHeadDim / 2 / 4;
  static __device__ __forceinline__ float4* waiting(float* sums, int index) {
    return reinterpret_cast<float4*>(sums) + static_cast<int64_t>(index) * (2 * kQuads * kWarpgroup) +
           threadIdx.x % kWarpgroup;
  }
  static __device__ __forceinline__ void add_waiting(Block& b, const float4* sums) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) add_quad(b.dk + 4 * i, sums + i * kWarpgroup);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) add_quad(b.dv + 4 * i, sums + (kQuads + i) * kWarpgroup);
  }
  static __device__ __forceinline__ void let_wait(const Block& b, float4* sums) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) store_quad(sums + i * kWarpgroup, b.dk + 4 * i);
#pragma unroll
    for (int i = 0; i < kQuads; ++i) store_quad(sums + (kQuads + i) * kWarpgroup, b.dv + 4 * i);
  }

  // For a work tile without all query heads of its keys: waits for the heads before and adds their dK and
  // dV. Keeps the sums for the next heads, if there are any.
  __device__ __forceinline__ void add_heads(Block& b, const WorkTile<Shape>& done) const {
    const int index =
        ((done.batch * a.kv_heads + done.kv_head) * a.key_blocks + done.key_block) * Shape::kGroups + group;
    uint32_t* const counter = a.key_counters + index;
    float4* const sums = waiting(a.key_sums, index);
    const int before = done.heads_before(a);
    if (before > 0) {
      if (leader) {
        while (ptx::load_acquire(counter) != static_cast<uint32_t>(before)) {
        }
      }
      sync_warpgroup(group);
      add_waiting(b, sums);
    }
    if (done.has_last_head(a)) return;
    let_wait(b, sums);
    sync_warpgroup(group);
    if (leader) ptx::red_add_release(counter, a.heads_per_work_tile);
  }

  // For a part of a key block: keeps its dK and dV. Returns whether all parts have ended. If so, these are
  // their sums, added up from the first part to the last whichever ends last.
  __device__ __forceinline__ bool add_parts(Block& b, const WorkTile<Shape>& done) const {
    const int first = (done.batch * a.heads + done.head) * a.parts + done.first_part;
    let_wait(b, waiting(a.part_sums, (first + done.part) * Shape::kGroups + group));
    sync_warpgroups<Shape>();
    const bool last =
        leader && group == 0 &&
        ptx::atomic_add_acq_rel(a.part_counters + first, 1) + 1 == static_cast<uint32_t>(done.parts);
    if (!any_of_warpgroups<Shape>(last)) return false;
#pragma unroll
    for (float& x : b.dk) x = 0;
#pragma unroll
    for (float& x : b.dv) x = 0;
#pragma unroll 1
    for (int part = 0; part < done.parts; ++part)
      add_waiting(b, waiting(a.part_sums, (first + part) * Shape::kGroups + group));
    return true;
  }
  // Past L1, where sums of another CTA do not arrive
  static __device__ __forceinline__ void add_quad(float* to, const float4* sums) {
    const float4 sum = __ldcg(sums);
    to[0] += sum.x, to[1] += sum.y, to[2] += sum.z, to[3] += sum.w;
  }
  static __device__ __forceinline__ void store_quad(float4* sums, const float* x) {
    __stcg(sums, float4{x[0], x[1], x[2], x[3]});
  }

  // dK and dV leave through shared memory that nothing reads any more. D = 64: this warpgroup's rows of the
  // slot that takes the next dS. D = 128: K and V, when both warpgroups are done with them.
  __device__ __forceinline__ void write(Block& b, const WorkTile<Shape>& done) const {
    using Gradients = typename Memory::Gradients;
    constexpr bool kThroughScores = kHeadDim == 64;
    const uint32_t rows = group * Gradients::kBytes;
    const Gradients dk_out{(kThroughScores ? memory.ds(at.slot).base : memory.k().base) + rows};
    const Gradients dv_out{
        (kThroughScores ? memory.ds(at.slot).base + Memory::Scores::kPanelBytes : memory.v().base) + rows};
    if constexpr (kThroughScores) {
      release_keys();
      wait_ds_place(at);
    } else {
      sync_warpgroups<Shape>();
    }
#pragma unroll
    for (float& x : b.dk) x *= gradient_scale();
    uint32_t packed[kHeadDim / 4];
    pack(packed, b.dk);
    store_fragment(dk_out, 0, 0, packed);
    if constexpr (Shape::kDropout) {
#pragma unroll
      for (float& x : b.dv) x *= a.dropout.scale();
    }
    pack(packed, b.dv);
    store_fragment(dv_out, 0, 0, packed);
    ptx::fence_shared_for_async();
    sync_warpgroup(group);
    if (leader) {
      store_tile<Shape::kWhole>(a.dk, dk_out, done.key_block * kBlockK + row, done.kv_head, done.batch);
      store_tile<Shape::kWhole>(a.dv, dv_out, done.key_block * kBlockK + row, done.kv_head, done.batch);
      ptx::bulk_commit();
    }
    if constexpr (!kThroughScores) {
      if (leader) ptx::bulk_wait_read<0>();
      sync_warpgroup(group);
      release_keys();
    }
  }
  // K; and V, where it is not released earlier
  __device__ __forceinline__ void release_keys() const {
    __syncwarp();
    if (warp_leader) {
      memory.k_ring().release(keys_at);
      if constexpr (kHeadDim == 128) memory.v_ring().release(keys_at);
    }
  }

  __device__ __forceinline__ void run() {
    if (group == 1) pass_turn<Shape>(group);
    for (;; keys_at.next()) {
      if (leader) ptx::bulk_wait_read<0>();  // dK, dV of the block before have left shared memory, ...
      sync_warpgroup(group);                 // ... and all threads know it
      memory.k_ring().wait_full(keys_at);
      const auto work = WorkTile<Shape>::published(memory.work(), a);
      if (work.key_block < 0) break;
      Block b{.walk = {work, a}};
      begin_block(b, work);
      step<0>(b);
      if (!b.walk.ended()) step<1>(b);
      while (!b.walk.ended()) step<2>(b);
      if (kHeadDim == 64 && warp_leader) memory.v_ring().release(keys_at);
      const WorkTile<Shape> done = catch_up(b);
      if constexpr (Shape::kListed) {
        if (done.parts > 1 && !add_parts(b, done)) {
          release_keys();
          continue;
        }
      }
      const bool writes = done.has_last_head(a);
      if (!writes) release_keys();  // early, for add_heads() may wait
      if (a.heads_per_work_tile != a.heads_per_kv) add_heads(b, done);
      if (writes) write(b, done);
    }
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    backward_kernel(const __grid_constant__ BackwardArgsOf<Shape> a) {
  if (threadIdx.x == 0) {
    BackwardMemory<Shape>().init_barriers();
    find_in_waves<Shape>(a);
  }
  __syncthreads();
  // Into a uniform register
  const int warpgroup = static_cast<int>(__reduce_max_sync(~0u, threadIdx.x / kWarpgroup));
  if (warpgroup == 0) {
    ptx::give_registers<24>();
    const int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
      if (warp == 0) load<Shape>(a);
      if (warp == 1) Sender<Shape>{a}.template run<0, 1>();
      if (warp == 2) Sender<Shape>{a}.template run<1, 2>();
      if (Sender<Shape>::kBySlot && warp == 3) Sender<Shape>{a}.template run<0, 2>();
    }
  } else {
    ptx::take_registers<240>();
    BackwardConsumer<Shape>(a, warpgroup - 1).run();
  }
}

}  // namespace tessera::attention::sm90
