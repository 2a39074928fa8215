// dQ of wide heads: see wide_args.cuh.
//
// A CTA has 128 queries of a head, 64 a warpgroup, with their Q and dO in shared memory, and walks over the
// key tiles that they see, upwards:
//   S = Q K_j^T,  P = 2^(c S - L),  dP = dO V_j^T,  dS = P o (dP - delta),  dQ += dS K_j
// The sum of a step is queued behind the scores of the next one, and runs under their powers. S and dP share
// registers. There is room for two K and one V, which is read for a third of a step.
#pragma once

#include "kernels/attention/sm90/wide_args.cuh"

namespace tessera::attention::sm90 {

struct WideQueriesMemory {
  using KRing = Ring<2>;
  using VRing = Ring<1>;
  static constexpr int kTile = WideTile::kBytes, kDout = WideShape::kConsumers * kTile,
                       kK = kDout + WideShape::kConsumers * kTile, kV = kK + 2 * kTile, kRings = kV + kTile,
                       kBarriers = kRings + KRing::kBytes + VRing::kBytes, kBytes = kBarriers + 8;
  static_assert(kBytes <= kSharedBytesOfCta);

  uint32_t base;

  __device__ __forceinline__ WideQueriesMemory() {
    extern __shared__ __align__(1024) uint8_t shared[];
    base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ __forceinline__ WideTile q(int warpgroup) const { return {base + warpgroup * kTile}; }
  __device__ __forceinline__ WideTile dout(int warpgroup) const { return {base + kDout + warpgroup * kTile}; }
  __device__ __forceinline__ WideTile k(int slot) const { return {base + kK + slot * kTile}; }
  __device__ __forceinline__ WideTile v() const { return {base + kV}; }
  __device__ __forceinline__ KRing k_ring() const { return {base + kRings}; }
  __device__ __forceinline__ VRing v_ring() const { return {base + kRings + KRing::kBytes}; }
  __device__ __forceinline__ uint32_t queries_full() const { return base + kBarriers; }

  __device__ __forceinline__ void init_barriers() const {
    if (base % kTileAlignment != 0) __trap();
    k_ring().init(WideShape::kConsumers * kWarpsPerGroup);
    v_ring().init(WideShape::kConsumers * kWarpsPerGroup);
    ptx::mbarrier_init(queries_full(), 1);
    ptx::fence_mbarrier_init();
  }
};

// The queries of a CTA
struct WideQueriesWork {
  static constexpr int kRows = WideShape::kConsumers * WideShape::kRows;
  int row, head, batch;

  // The last tiles come first: with a causal mask they see the most. Heads are the fastest, for those of a
  // group read the same keys.
  __device__ __forceinline__ explicit WideQueriesWork(const WideArgs& a) {
    const int blocks = static_cast<int>(gridDim.x) / a.all_heads;
    const int block = blocks - 1 - static_cast<int>(blockIdx.x) / a.all_heads,
              of_all = static_cast<int>(blockIdx.x) % a.all_heads;
    row = block * kRows;
    batch = of_all / a.heads, head = of_all % a.heads;
  }
  // The key tiles that queries from `first` on see; one of those of the CTA at least, so that rows that see
  // nothing get their zeros as any other
  static __device__ __forceinline__ Span tiles(const Mask& mask, int first, int count, int none) {
    const Span seen =
        first >= mask.queries
            ? Span{0, 0}
            : mask.keys_of(Span{first, min(first + count, mask.queries)}).tiles(WideShape::kRows);
    return seen.empty() ? Span{none, none + 1} : seen;
  }
};

template <class Shape>
__device__ __forceinline__ void load_for_queries(const WideArgs& a, const WideQueriesMemory& memory) {
  const WideQueriesWork work(a);
  ptx::mbarrier_arrive_expect(memory.queries_full(), 2 * WideShape::kConsumers * WideTile::kBytes);
  for (int w = 0; w < WideShape::kConsumers; ++w) {
    const int row = work.row + w * WideShape::kRows;
    load_tile<Shape::kWhole>(memory.q(w), a.q, memory.queries_full(), row, work.head, work.batch);
    load_tile<Shape::kWhole>(memory.dout(w), a.dout, memory.queries_full(), row, work.head, work.batch);
  }
  const Span tiles =
      WideQueriesWork::tiles(a.mask.of_sequence(work.batch), work.row, WideQueriesWork::kRows, 0);
  const int kv_head = work.head / a.heads_per_kv;
  RingPlace<2> k_at;
  RingPlace<1> v_at;
  for (int tile = tiles.begin; tile < tiles.end; ++tile, k_at.next(), v_at.next()) {
    const int row = tile * WideShape::kRows;
    const uint32_t k_full = memory.k_ring().begin_fill(k_at, WideTile::kBytes);
    load_tile<Shape::kWhole>(memory.k(k_at.slot), a.k, k_full, row, kv_head, work.batch);
    const uint32_t v_full = memory.v_ring().begin_fill(v_at, WideTile::kBytes);
    load_tile<Shape::kWhole>(memory.v(), a.v, v_full, row, kv_head, work.batch);
  }
}

// What is known of a thread's two queries, and of the 64 of its warpgroup: the keys that all of them see
struct QueryRows {
  float log2_sum_exp[2] = {INFINITY, INFINITY}, delta[2] = {0, 0};
  Span seen[2] = {{0, 0}, {0, 0}}, whole{0, 0};

  __device__ __forceinline__ QueryRows(const WideArgs& a, const Mask& mask, const WideQueriesWork& work,
                                       int row) {
    if (row >= mask.queries) return;
    const float* statistics = a.statistics(work.batch, work.head, row / WideShape::kRows);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int own = lane_row() + 8 * r;
      log2_sum_exp[r] = statistics[own], delta[r] = statistics[WideShape::kRows + own];
      seen[r] = keys_seen(mask, row + own);
    }
    whole = {mask.keys_of(min(row + WideShape::kRows, mask.queries) - 1).begin, mask.keys_of(row).end};
  }
};

// One of the warpgroups that multiply
template <class Shape>
__device__ __forceinline__ void sum_dq(const WideArgs& a, WideQueriesMemory memory, int warpgroup) {
  const WideQueriesWork work(a);
  const int row = work.row + warpgroup * WideShape::kRows;
  const Mask mask = a.mask.of_sequence(work.batch);
  const Span all = WideQueriesWork::tiles(mask, work.row, WideQueriesWork::kRows, 0),
             mine = WideQueriesWork::tiles(mask, row, WideShape::kRows, all.begin);
  const auto score = Shape::Score::positive(a.score);
  const QueryRows rows(a, mask, work, row);
  float dq[128], x[32];    // S, P; dP
  uint32_t p[16], ds[16];  // P, with a cap Y; dS
  RingPlace<2> k_at;
  RingPlace<1> v_at;
  WideTile q = memory.q(warpgroup), dout = memory.dout(warpgroup);
  const auto release_k = [&](RingPlace<2> at) {
    if (threadIdx.x % 32 == 0) memory.k_ring().release(at);
  };
  const auto release_v = [&] {
    if (threadIdx.x % 32 == 0) memory.v_ring().release(v_at);
    v_at.next();
  };
  const auto skip = [&](int tiles) {  // key tiles that these queries do not see
    for (; tiles > 0; --tiles, k_at.next()) {
      memory.k_ring().wait_full(k_at);
      release_k(k_at);
      memory.v_ring().wait_full(v_at);
      release_v();
    }
  };
  const auto begin_scores = [&] {
    memory.k_ring().wait_full(k_at);
    ptx::wgmma_fence();
    multiply_rows_rows<WideShape::kRows>(x, q, 0, memory.k(k_at.slot), 0);
    ptx::wgmma_commit();
  };
  const auto begin_gradients = [&] {
    memory.v_ring().wait_full(v_at);
    ptx::wgmma_fence();
    multiply_rows_rows<WideShape::kRows>(x, dout, 0, memory.v(), 0);
    ptx::wgmma_commit();
  };
  const auto begin_sum = [&](RingPlace<2> at, bool add) {
    ptx::hold(ds);
    ptx::hold(dq);
    ptx::wgmma_fence();
    multiply_registers_rows<WideShape::kHeadDim, WideShape::kRows>(dq, ds, memory.k(at.slot), 0, 0, add);
    ptx::wgmma_commit();
  };
  const auto to_probabilities = [&](int tile) {
    ptx::hold(x);
    cap_scores<typename Shape::Score>(x, a.cap);
    if (!rows.whole.contains({tile * WideShape::kRows, (tile + 1) * WideShape::kRows}))
      mask_transposed(x, tile * WideShape::kRows, rows.seen);
    rows_to_probabilities<typename Shape::Score>(x, score, a.cap, rows.log2_sum_exp);
    pack(p, x);
    ptx::hold(p);
  };
  const auto to_score_gradients = [&] {
    ptx::hold(x);
    release_v();
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float low = __uint_as_float(p[i] << 16), high = __uint_as_float(p[i] & 0xffff0000);
      ds[i] = ptx::pack_bf16(low * (x[2 * i] - rows.delta[i % 2]), high * (x[2 * i + 1] - rows.delta[i % 2]));
    }
    ptx::hold(ds);
  };
  ptx::mbarrier_wait(memory.queries_full(), 0);
  skip(mine.begin - all.begin);
  begin_scores();
  ptx::wgmma_wait<0>();
  to_probabilities(mine.begin);
  begin_gradients();
  ptx::wgmma_wait<0>();
  to_score_gradients();
  bool add = false;  // the first product is the sum, and then gets the others
  for (int tile = mine.begin + 1; tile < mine.end; ++tile, add = true) {
    k_at.next();
    // Else descriptors of all steps are computed ahead, and fill the registers.
    ptx::opaque(memory.base), ptx::opaque(q.base), ptx::opaque(dout.base);
    begin_scores();
    begin_sum(k_at.before(), add);
    ptx::wgmma_wait<1>();
    to_probabilities(tile);
    begin_gradients();
    ptx::wgmma_wait<1>();
    ptx::hold(dq);
    ptx::hold(ds);
    release_k(k_at.before());
    ptx::wgmma_wait<0>();
    to_score_gradients();
  }
  begin_sum(k_at, add);
  ptx::wgmma_wait<0>();
  ptx::hold(dq);
  release_k(k_at), k_at.next();
  if (row < mask.queries)
    write_sum<Shape>(dq, Shape::Score::derivative(a.score), q, a.dq, warpgroup, row, work.head, work.batch);
  skip(all.end - mine.end);
}

template <class Shape>
__global__ void __launch_bounds__(WideShape::kThreads, 1)
    wide_queries_kernel(const __grid_constant__ WideArgs a) {
  const WideQueriesMemory memory;
  if (threadIdx.x == 0) memory.init_barriers();
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == WideShape::kConsumers) {
    ptx::give_registers<WideShape::kProducerRegisters>();
    if (threadIdx.x == WideShape::kConsumers * kWarpgroup) load_for_queries<Shape>(a, memory);
  } else {
    ptx::take_registers<WideShape::kConsumerRegisters>();
    sum_dq<Shape>(a, memory, warpgroup);
  }
}

}  // namespace tessera::attention::sm90
