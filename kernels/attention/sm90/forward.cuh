// Forward attention with wgmma and TMA.
//
//   for every tile of queries that this CTA takes, three slices of 64, one a warpgroup:      Q_i [64, D]
//     O = 0, m = -inf, sum = 0
//     for every key tile j, from the last that the slice sees down to 0:                     K_j, V_j [Bk, D]
//       S = Q_i K_j^T, masked where the tile crosses the diagonal or the end                 [64, Bk]
//       m, P, sum = online softmax of S (softmax.cuh); O is brought to the new m
//       O += P V_j                                                                           [64, D]
//     O /= sum, LSE = (m + log2(sum)) ln(2)
//
// A fourth warpgroup's first thread loads. P stays in registers: an accumulator of S is, packed, the A
// operand of P V. What runs beside what:
// - in a warpgroup, O += P V_{j+1} is queued behind S = Q K_j^T, also across query tiles: the last product
//   of one tile runs beside the first scores of the next, and O is written after that. So the tensor cores
//   see no gap between tiles, and the loop has one place for each product.
// - warpgroups take turns to queue their products: while one has the tensor cores, the others do softmax.
// - a slice that sees fewer keys than its tile's last one passes its turn and releases the key tile unread.
#pragma once

#include "kernels/attention/common/dropout.cuh"
#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/softmax.cuh"
#include "kernels/attention/sm90/forward_listed.cuh"
#include "kernels/attention/sm90/forward_load.cuh"
#include "kernels/attention/sm90/forward_spans.cuh"
#include "kernels/hopper/tensor_map.h"

namespace tessera::attention::sm90 {

// What a slice of 64 rows may not see: those scores become -inf.
template <class Shape, bool kCausal>
struct SliceMask {
  static constexpr int kBlockK = Shape::kBlockK;
  int tokens;
  int row;  // the first that the thread has elements of; the other is 8 below
  Span whole;
  uint32_t rows_keys;  // with kAnyMask: in shared memory, of that row

  __device__ __forceinline__ SliceMask(int all_tokens, const ForwardWorkTile<Shape>& work,
                                       uint32_t slice_rows_keys)
      : tokens(all_tokens),
        row(work.row + lane_row()),
        whole{0, kCausal ? min(all_tokens, work.row + 1) : all_tokens},
        rows_keys(slice_rows_keys + lane_row() * 8) {
    if constexpr (Shape::kAnyMask) whole = work.keys.whole;
  }
  // The scores of key tile j
  __device__ __forceinline__ void apply(float (&s)[kBlockK / 2], int j) const {
    if (!whole.contains({j * kBlockK, (j + 1) * kBlockK})) hide(s, j * kBlockK);
  }

 private:
  __device__ __forceinline__ Span keys_of(int r) const {
    if constexpr (Shape::kAnyMask) {
      const int2 seen = ptx::load_shared_int2(rows_keys + r * 64);
      return {seen.x, seen.y};
    }
    return {0, kCausal ? min(tokens, row + 8 * r + 1) : tokens};
  }
  __device__ __forceinline__ void hide(float (&s)[kBlockK / 2], int key) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const Span seen = keys_of(r);
      // Columns are compile-time constants up to the lane's own offset, which goes into the limits.
      const int first = key + threadIdx.x % 4 * 2, end = seen.end - first, begin = seen.begin - first;
#pragma unroll
      for (int n = 0; n < kBlockK / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * n + e;
          if (column >= end || (Shape::kAnyMask && column < begin)) s[4 * n + 2 * r + e] = -INFINITY;
        }
      }
    }
  }
};

// ALiBi of a slice of 64 rows: see FramedAlibiScore.
template <class Shape>
struct SliceBias {
  float slope;   // in units of x = q k^T
  int position;  // among the keys, of the first row that the thread has elements of

  __device__ __forceinline__ SliceBias(const ForwardArgs& a, const ForwardWorkTile<Shape>& work)
      : slope(raw_bias<typename Shape::Score>(a.alibi, work.head, a.score.scale).slope),
        position(work.row + lane_row() + a.query_offset) {}
  // To the scores of keys from `key` on
  __device__ __forceinline__ void add(float (&s)[Shape::kBlockK / 2], typename Shape::Score& score,
                                      int key) const {
    const int first = key + threadIdx.x % 4 * 2 - position;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      score.frame[r] = slope * static_cast<float>(first - 8 * r);
#pragma unroll
      for (int n = 0; n < Shape::kBlockK / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          s[4 * n + 2 * r + e] = fmaf(slope, static_cast<float>(8 * n + e), s[4 * n + 2 * r + e]);
      }
    }
  }
};

// One of the warpgroups that compute
template <class Shape, bool kCausal>
struct ForwardConsumer {
  using Memory = ForwardMemory<Shape>;
  using WorkTile = ForwardWorkTile<Shape>;
  using Softmax = OnlineSoftmax<SumOrder::kPairs, typename Shape::Score>;
  static constexpr int kBlockK = Shape::kBlockK, kHeadDim = Shape::kHeadDim;
  static constexpr bool kBiased = Shape::Score::kBiased;
  static_assert(!kBiased || kCausal || Shape::kAnyMask);
  // A slice may see (kConsumers - 1) 64 keys fewer than the tile's last. While it skips
  // those key tiles it still holds a slot of V, for its pending product: the loader must
  // reach the next K before it waits for that slot.
  static_assert(((Shape::kConsumers - 1) * kWarpgroupRows + kBlockK - 1) / kBlockK < Shape::kKVSlots);
  // With kAnyMask it may be more: then the product is finished before.
  // With one slot of Q a slice ends before the next one begins: O leaves by the slot that the next one needs.
  static constexpr bool kOverlaps = Shape::kQSlots > 1;
  static_assert(kOverlaps || (!kBiased && !Shape::kListed));  // attend_alone() has neither

  const ForwardArgsOf<Shape>& a;
  const Memory memory;
  const int warpgroup;
  Softmax softmax{a.score};
  float o[kHeadDim / 2] = {};
  uint32_t p[kBlockK / 4] = {};
  bool pending = false;                          // O lacks the product of p and the V at v_at
  bool storing = false;                          // TMA may still read an output, at slot q_stored
  int out_row = 0, out_head = 0, out_batch = 0;  // where O goes, by slot q_out
  typename Memory::QRing::Place q_at, q_out, q_stored;
  typename Memory::KVRing::Place k_at, v_at;

  static __device__ __forceinline__ bool leader() { return threadIdx.x % kWarpgroup == 0; }

  // One arrival a warp, so that each vouches for its own reads
  __device__ __forceinline__ void release_k() {
    if (threadIdx.x % 32 == 0) memory.k_ring().release(k_at);
    k_at.next();
  }
  __device__ __forceinline__ void release_v() {
    if (threadIdx.x % 32 == 0) memory.v_ring().release(v_at);
    v_at.next();
  }
  __device__ __forceinline__ void skip_v() {
    memory.v_ring().wait_full(v_at);
    release_v();
  }
  __device__ __forceinline__ void finish_store() {
    if (leader() && storing) {
      ptx::bulk_wait_read<0>();
      memory.q_ring(warpgroup).release(q_stored);
    }
    storing = false;
  }
  __device__ __forceinline__ void begin_product_v(bool add = true) {
    if (pending) memory.v_ring().wait_full(v_at);
    ptx::hold(p);
    ptx::hold(o);
    ptx::wgmma_fence();
    multiply_registers_rows<kHeadDim, kBlockK>(o, p, memory.v(v_at.slot), 0, 0, add);
    ptx::wgmma_commit();
  }

  // O and LSE of a finished slice, over the slice of Q that it came from
  __device__ __forceinline__ void write(Softmax& finished) {
    if constexpr (Shape::kSink) finished.add_sink(o, static_cast<float>(a.sinks[out_head]) * kLog2e);
    finished.finish(o, Shape::kDropout ? a.dropout.scale() : 1);
    uint32_t packed[kHeadDim / 4];
    pack(packed, o);
    const auto out = memory.q(warpgroup, q_out.slot);
    ptx::barrier_sync(own_barrier(warpgroup), kWarpgroup);  // else a warp could still need rows of Q
    store_fragment(out, 0, 0, packed);
    ptx::fence_shared_for_async();
    ptx::barrier_sync(own_barrier(warpgroup), kWarpgroup);  // else rows of O could be missing
    // After the fence, which would wait for these stores
    float* lse = a.lse + static_cast<int64_t>(out_batch * a.schedule.heads() + out_head) * a.tokens;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = out_row + lane_row() + 8 * r;
      if (threadIdx.x % 4 == 0 && at < a.tokens) lse[at] = finished.log_sum_exp(r);
    }
    if (leader()) {
      store_tile<Shape::kWhole>(a.out, out, out_row, out_head, out_batch);
      ptx::bulk_commit();
    }
    q_stored = q_out;
    storing = true;
  }
  __device__ __forceinline__ void finish_slice() {
    begin_product_v();
    ptx::wgmma_wait<0>();
    ptx::hold(o);
    release_v();
    write(softmax);
    pending = false;
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == Shape::kConsumers - 1) pass_turn<Shape>(warpgroup);
    for (;;) {
      finish_store();  // the loader may need that slot to bring the next slice
      memory.q_ring(warpgroup).wait_full(q_at);
      const WorkTile work = WorkTile::load(memory.work(warpgroup, q_at.slot));
      const bool active = work.key_tiles >= 0 && work.row < a.tokens;
      Span mine{0, 0};
      if constexpr (Shape::kAnyMask) {
        if (active) mine = work.keys.tiles;
      } else {
        if (active) mine.end = key_tiles<Shape, kCausal>(a.tokens, work.row + kWarpgroupRows);
      }
      const int above = work.key_tiles - mine.end;  // key tiles to skip before the first
      const bool waits = kOverlaps && active && (!Shape::kAnyMask || (pending && above < Shape::kKVSlots));
      if (!waits && pending) finish_slice();
      if (work.key_tiles < 0) break;
      skip(active ? above : work.key_tiles - work.first_key_tile, !waits);
      if (!kOverlaps && active) {
        attend_alone(work, mine);
        if constexpr (Shape::kAnyMask) skip(mine.begin - work.first_key_tile, true);
      } else if (active) {
        attend(work, mine, waits ? above : 0);
        if constexpr (Shape::kAnyMask) {
          if (mine.begin > work.first_key_tile) {
            finish_store();  // of the slice before, where this one had a single key tile
            finish_slice();
            skip(mine.begin - work.first_key_tile, true);
          }
        }
      } else if (leader()) {
        memory.q_ring(warpgroup).release(q_at);  // all warps have read it: they took a turn since
      }
      q_at.next();
    }
    if (leader()) ptx::bulk_wait_read<0>();
  }

  // Key tiles that the slice does not see. V too, unless an earlier one is still needed.
  __device__ __forceinline__ void skip(int tiles, bool skips_v) {
    for (; tiles > 0; --tiles) {
      memory.k_ring().wait_full(k_at);
      take_turn(warpgroup);
      pass_turn<Shape>(warpgroup);
      release_k();
      if (skips_v) skip_v();
    }
  }

  // An exponential and a reciprocal take longer than a polynomial: a warp without scores near the cap takes
  // that.
  __device__ __forceinline__ void cap_scores(float (&s)[kBlockK / 2]) const {
    if constexpr (Shape::Score::kCapped) {
      float largest = 0;
#pragma unroll
      for (int i = 0; i < kBlockK / 2; ++i) largest = fmaxf(largest, fabsf(s[i]));
      if (__any_sync(0xffffffff, largest > a.cap.nearby)) {
#pragma unroll
        for (int i = 0; i < kBlockK / 2; ++i) s[i] = a.cap.fast(s[i]);
      } else {
#pragma unroll
        for (int i = 0; i < kBlockK / 2; ++i) s[i] = a.cap.near(s[i]);
      }
    }
  }

  // A slice from its first scores to its output, of the key tiles `mine`
  __device__ __forceinline__ void attend_alone(const WorkTile& work, Span mine) {
    auto q = memory.q(warpgroup, q_at.slot);
    const SliceMask<Shape, kCausal> mask(a.tokens, work, memory.rows_keys(warpgroup, q_at.slot));
    float s[kBlockK / 2];
    const auto begin_scores = [&] {
      memory.k_ring().wait_full(k_at);
      take_turn(warpgroup);
      ptx::wgmma_fence();
      multiply_rows_rows<kBlockK>(s, q, 0, memory.k(k_at.slot), 0);
      ptx::wgmma_commit();
    };
    const auto to_probabilities = [&](int j) {
      release_k();
      cap_scores(s);
      mask.apply(s, j);
      softmax.raise(s);
      softmax.exponentiate(s);
      ptx::hold(s);
    };
    softmax = Softmax(a.score);
    pending = true;
    begin_scores();
    pass_turn<Shape>(warpgroup);
    ptx::wgmma_wait<0>();
    ptx::hold(s);
    to_probabilities(mine.end - 1);
    pack(p, s);
    bool add = false;  // O is the first product, and then gets the others
    for (int j = mine.end - 2; j >= mine.begin; --j, add = true) {
      ptx::opaque(q.base);  // else descriptors of Q are computed ahead, and fill the registers
      begin_scores();
      begin_product_v(add);
      pass_turn<Shape>(warpgroup);
      ptx::wgmma_wait<1>();
      ptx::hold(s);
      to_probabilities(j);
      ptx::wgmma_wait<0>();
      ptx::hold(o);
      ptx::hold(p);
      release_v();
      if (softmax.behind) softmax.rescale(o);
      pack(p, s);
    }
    out_row = work.row, out_head = work.head, out_batch = work.batch;
    q_out = q_at;
    begin_product_v(add);
    ptx::wgmma_wait<0>();
    ptx::hold(o);
    release_v();
    write(softmax);
    pending = false;
  }

  // A slice, of the key tiles `mine`; `skipped` tiles before them, of which K is already skipped. Leaves the
  // last product pending.
  __device__ __forceinline__ void attend(const WorkTile& work, Span mine, int skipped) {
    const auto q = memory.q(warpgroup, q_at.slot);
    const SliceMask<Shape, kCausal> mask(a.tokens, work, memory.rows_keys(warpgroup, q_at.slot));
    [[maybe_unused]] const SliceBias<Shape> bias(a, work);
    for (int place = mine.end - 1; place >= mine.begin; --place) {
      const bool first = place == mine.end - 1;
      const int j = work.key_tile(a, place);
      float s[kBlockK / 2];
      memory.k_ring().wait_full(k_at);
      take_turn(warpgroup);
      ptx::wgmma_fence();
      multiply_rows_rows<kBlockK>(s, q, 0, memory.k(k_at.slot), 0);
      ptx::wgmma_commit();
      begin_product_v();  // the very first multiplies whatever lies there: O is cleared below
      pass_turn<Shape>(warpgroup);
      QueryMasks<kBlockK> masks;
      if constexpr (Shape::kDropout) {  // while the products are under way
        masks.draw(a.dropout, work.batch, work.head, work.row + lane_row(), j * kBlockK);
        ptx::hold(masks.words);
      }
      if constexpr (!Shape::kWaitLate) finish_store();
      ptx::wgmma_wait<1>();
      ptx::hold(s);
      release_k();
      cap_scores(s);
      mask.apply(s, j);
      Softmax before = softmax;
      if (first) softmax = Softmax(a.score);
      if constexpr (kBiased) bias.add(s, softmax.score, j * kBlockK);
      softmax.raise(s);
      softmax.exponentiate(s);
      if constexpr (Shape::kWaitLate) {
        ptx::hold(s);
        finish_store();  // a branch, across which the compiler does not move the powers
      }
      ptx::wgmma_wait<0>();
      ptx::hold(o);
      ptx::hold(p);
      if (pending) release_v();
      if (first) {
        if (pending) write(before);
        for (int left = skipped; left > 0; --left) skip_v();
#pragma unroll
        for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0;
        out_row = work.row, out_head = work.head, out_batch = work.batch;
        q_out = q_at;
      } else if (softmax.behind) {
        softmax.rescale(o);
      }
      pack(p, s);
      if constexpr (Shape::kDropout) masks.drop(p);
      pending = true;
    }
  }
};

template <class Shape, bool kCausal>
__global__ void __launch_bounds__((Shape::kConsumers + 1) * kWarpgroup, 1)
    forward_kernel(const __grid_constant__ ForwardArgsOf<Shape> a) {
  const ForwardMemory<Shape> memory;
  if (threadIdx.x == 0) {
    for (int w = 0; w < Shape::kConsumers; ++w) memory.q_ring(w).init(1);
    memory.k_ring().init(Shape::kConsumers * kWarpsPerGroup);
    memory.v_ring().init(Shape::kConsumers * kWarpsPerGroup);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  // So that the compiler knows it uniform
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == Shape::kConsumers) {
    ptx::give_registers<Shape::kProducerRegisters>();
    if (threadIdx.x == Shape::kConsumers * kWarpgroup) produce<Shape, kCausal>(a, memory);
  } else {
    ptx::take_registers<Shape::kConsumerRegisters>();
    ForwardConsumer<Shape, kCausal>{a, memory, warpgroup}.run();
  }
}

template <class Shape>
ForwardArgsOf<Shape> listed_args_of(const ForwardArgs& args, const AttnProblem& p) {
  if constexpr (Shape::kListed) {
    const Blocks blocks = blocks_of(p);
    const int shift = blocks.shift_of(Shape::kBlockK);
    return {args, blocks, Divisor(blocks.heads), shift, blocks.key_blocks << shift};
  } else {
    return args;
  }
}

template <class Shape>
AttnStatus launch_forward(const AttnForward& f, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  int device, sms;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return ATTN_LAUNCH_FAILED;
  }
  auto args = listed_args_of<Shape>(
      ForwardArgs{.schedule = Shape::kListed
                                  ? ForwardSchedule::of_whole_tiles(p, kWarpgroupRows, Shape::kConsumers, sms)
                                  : ForwardSchedule(p, kWarpgroupRows, Shape::kConsumers, sms),
                  .lse = f.lse,
                  .tokens = static_cast<int>(p.tokens),
                  .score = score_args_of(p),
                  .dropout = DropoutMask(dropout_of(p)),
                  .sinks = static_cast<const __nv_bfloat16*>(f.sinks),
                  .alibi = alibi_of(p),
                  .query_offset = static_cast<int>(p.mask.offset),
                  .cap = score_cap_of(p)},
      p);
  const auto queries = [&](CUtensorMap& map, const AttnTensor& tensor) {
    return make_tensor_map(map, HeadBoxes{.tensor = view<void>(tensor),
                                          .batch = p.batch,
                                          .tokens = p.tokens,
                                          .heads = p.heads,
                                          .box = box_of(p.head_dim, Shape::kHeadDim, kWarpgroupRows)});
  };
  const auto keys = [&](CUtensorMap& map, const AttnTensor& tensor) {
    return make_tensor_map(map, HeadBoxes{.tensor = view<void>(tensor),
                                          .batch = p.batch,
                                          .tokens = p.kv_tokens,
                                          .heads = p.kv_heads,
                                          .box = box_of(p.head_dim, Shape::kHeadDim, Shape::kBlockK)});
  };
  if (!queries(args.q, f.q) || !keys(args.k, f.k) || !keys(args.v, f.v) || !queries(args.out, f.out))
    return ATTN_LAUNCH_FAILED;
  constexpr bool kOnlyCausal = Shape::Score::kBiased && !Shape::kAnyMask;
  auto kernel = forward_kernel<Shape, kOnlyCausal>;
  if constexpr (Shape::kAnyMask) {
    AttnStatus status;
    if constexpr (Shape::kListed) {
      status = find_listed_spans<Shape>(&args, f, stream);
    } else {
      status = find_spans<Shape>(&args, f, stream);
    }
    if (status != ATTN_OK) return status;
  } else if (p.mask.causal) {
    kernel = forward_kernel<Shape, true>;
  }
  const dim3 grid(std::min(sms, args.schedule.items()));
  return launch(kernel, grid, (Shape::kConsumers + 1) * kWarpgroup, ForwardMemory<Shape>::kAskFor, stream,
                args);
}

// The shape's kernel for plain masks, or the one for any mask, as the problem has it
template <class Shape>
AttnStatus launch_forward_by_mask(const AttnForward& f, CUstream_st* stream) {
  return mask_of(f.problem).plain() ? launch_forward<Shape>(f, stream)
                                    : launch_forward<WithMask<Shape>>(f, stream);
}

}  // namespace tessera::attention::sm90
