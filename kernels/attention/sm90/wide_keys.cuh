// dK and dV of wide heads: see wide_args.cuh.
//
// A CTA has 64 keys. Its first warpgroup computes P^T = K Q_i^T and sums dV += P^T dO_i, the second computes
// dP^T = V dO_i^T, takes P^T from the first, and sums dK += dS^T Q_i. Both have the same work, and each keeps
// its own sum of 64 x 256 in registers. P^T goes through shared memory in bf16, in the order of registers:
// a thread of the second warpgroup has the elements that the same thread of the first one had.
//
// The products of a step: the scores of step i, and behind them the sum of step i - 1, under which the powers
// of step i are computed. A third warpgroup's first thread loads.
#pragma once

#include "kernels/attention/sm90/wide_args.cuh"

namespace tessera::attention::sm90 {

struct WideKeysMemory {
  using QueryRing = Ring<2>;
  static constexpr int kTile = WideTile::kBytes, kExchangeBytes = kWarpgroup * 64,
                       kRowsBytes = 2 * WideShape::kRows * 4;
  static constexpr int kQ = 2 * kTile, kDout = kQ + 2 * kTile, kExchange = kDout + 2 * kTile,
                       kRows = kExchange + 2 * kExchangeBytes, kRings = kRows + 2 * kRowsBytes,
                       kBarriers = kRings + 2 * QueryRing::kBytes, kBytes = kBarriers + 5 * 8;
  static_assert(kBytes <= kSharedBytesOfCta);

  uint32_t base;

  __device__ __forceinline__ WideKeysMemory() {
    extern __shared__ __align__(1024) uint8_t shared[];
    base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  }
  __device__ __forceinline__ WideTile k() const { return {base}; }
  __device__ __forceinline__ WideTile v() const { return {base + kTile}; }
  __device__ __forceinline__ WideTile q(int slot) const { return {base + kQ + slot * kTile}; }
  __device__ __forceinline__ WideTile dout(int slot) const { return {base + kDout + slot * kTile}; }
  // LSE log2(e) and behind it delta of the queries in this slot of Q
  __device__ __forceinline__ uint32_t rows(int slot) const { return base + kRows + slot * kRowsBytes; }
  __device__ __forceinline__ uint32_t exchange(int slot) const {
    return base + kExchange + slot * kExchangeBytes + threadIdx.x % kWarpgroup * 16;
  }
  __device__ __forceinline__ QueryRing q_ring() const { return {base + kRings}; }
  __device__ __forceinline__ QueryRing dout_ring() const { return {base + kRings + QueryRing::kBytes}; }
  // mbarriers: K and V are there; P^T of a slot is there, has been taken (an arrival a warp)
  __device__ __forceinline__ uint32_t keys_full() const { return base + kBarriers; }
  __device__ __forceinline__ uint32_t p_full(int slot) const { return keys_full() + 8 + 8 * slot; }
  __device__ __forceinline__ uint32_t p_empty(int slot) const { return keys_full() + 24 + 8 * slot; }

  __device__ __forceinline__ void init_barriers() const {
    if (base % kTileAlignment != 0) __trap();
    q_ring().init(2 * kWarpsPerGroup);
    dout_ring().init(2 * kWarpsPerGroup);
    ptx::mbarrier_init(keys_full(), 1);
    for (int slot = 0; slot < 2; ++slot) {
      ptx::mbarrier_init(p_full(slot), kWarpsPerGroup);
      ptx::mbarrier_init(p_empty(slot), kWarpsPerGroup);
    }
    ptx::fence_mbarrier_init();
  }
};

// The keys of a CTA, and its steps: the query tiles of one head, then those of the next one
struct WideKeysWork {
  int first_k, kv_head, batch;
  Span tiles;

  // The first blocks come first: with a causal mask they see the most.
  __device__ __forceinline__ explicit WideKeysWork(const WideArgs& a) {
    const int block = static_cast<int>(blockIdx.x) / a.all_kv_heads,
              head = static_cast<int>(blockIdx.x) % a.all_kv_heads;
    first_k = block * WideShape::kRows;
    batch = head / a.kv_heads, kv_head = head % a.kv_heads;
    const Mask mask = a.mask.of_sequence(batch);
    tiles =
        mask.queries_of(Span{first_k, min(first_k + WideShape::kRows, mask.keys)}).tiles(WideShape::kRows);
  }
  __device__ __forceinline__ int steps(const WideArgs& a) const { return tiles.size() * a.heads_per_kv; }
};

template <class Shape>
__device__ __forceinline__ void load_for_keys(const WideArgs& a, const WideKeysMemory& memory) {
  const WideKeysWork work(a);
  ptx::mbarrier_arrive_expect(memory.keys_full(), 2 * WideTile::kBytes);
  load_tile<Shape::kWhole>(memory.k(), a.k, memory.keys_full(), work.first_k, work.kv_head, work.batch);
  load_tile<Shape::kWhole>(memory.v(), a.v, memory.keys_full(), work.first_k, work.kv_head, work.batch);
  RingPlace<2> at;
  for (int h = 0; h < a.heads_per_kv; ++h)
    for (int tile = work.tiles.begin; tile < work.tiles.end; ++tile, at.next()) {
      const int head = work.kv_head * a.heads_per_kv + h, row = tile * WideShape::kRows;
      const uint32_t q_full = memory.q_ring().begin_fill(at, WideTile::kBytes + WideKeysMemory::kRowsBytes);
      load_tile<Shape::kWhole>(memory.q(at.slot), a.q, q_full, row, head, work.batch);
      ptx::load_bytes(memory.rows(at.slot), a.statistics(work.batch, head, tile), WideKeysMemory::kRowsBytes,
                      q_full);
      const uint32_t dout_full = memory.dout_ring().begin_fill(at, WideTile::kBytes);
      load_tile<Shape::kWhole>(memory.dout(at.slot), a.dout, dout_full, row, head, work.batch);
    }
}

__device__ __forceinline__ void release(const Ring<2>& ring, RingPlace<2> at) {
  if (threadIdx.x % 32 == 0) ring.release(at);
}

// The warpgroup of P and dV
template <class Shape>
__device__ __forceinline__ void sum_dv(const WideArgs& a, const WideKeysMemory& memory) {
  const WideKeysWork work(a);
  const Mask mask = a.mask.of_sequence(work.batch);
  const Span seeing[2] = {seeing_of(work.first_k, 0, mask), seeing_of(work.first_k, 1, mask)};
  Span whole{0, 0};
  if (work.first_k + WideShape::kRows <= mask.keys)
    whole = {mask.queries_of(work.first_k + WideShape::kRows - 1).begin, mask.queries_of(work.first_k).end};
  const auto score = Shape::Score::positive(a.score);
  constexpr bool kCapped = Shape::Score::kCapped;
  float dv[128], s[32];
  uint32_t p[16], y[kCapped ? 16 : 1];
  RingPlace<2> at;
  int tile = work.tiles.begin;
  const auto begin_scores = [&] {
    memory.q_ring().wait_full(at);
    ptx::wgmma_fence();
    multiply_rows_rows<WideShape::kRows>(s, memory.k(), 0, memory.q(at.slot), 0);
    ptx::wgmma_commit();
  };
  const auto begin_sum = [&](RingPlace<2> of, bool add) {
    memory.dout_ring().wait_full(of);
    ptx::hold(p);
    ptx::hold(dv);
    ptx::wgmma_fence();
    multiply_registers_rows<WideShape::kHeadDim, WideShape::kRows>(dv, p, memory.dout(of.slot), 0, 0, add);
    ptx::wgmma_commit();
  };
  const auto to_probabilities = [&] {
    ptx::hold(s);
    const ColumnStatistics log2_sum_exp(memory.rows(at.slot));
    cap_scores<typename Shape::Score>(s, a.cap);
    if (!whole.contains({tile * WideShape::kRows, (tile + 1) * WideShape::kRows}))
      mask_transposed(s, tile * WideShape::kRows, seeing);
    if constexpr (kCapped) {
      capped_to_probabilities(s, y, score, a.cap, log2_sum_exp);
      ptx::hold(y);
    } else {
      scores_to_probabilities(s, score, log2_sum_exp);
    }
    ptx::hold(s);
    release(memory.q_ring(), at);
    ptx::mbarrier_wait(memory.p_empty(at.slot), at.turn ^ 1);
  };
  const auto hand_over = [&] {
    pack(p, s);
    const auto send = [&](const uint32_t(&x)[16]) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        ptx::store_shared(memory.exchange(at.slot) + i * (kWarpgroup * 16),
                          make_uint4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]));
    };
    if constexpr (kCapped)
      send(y);
    else
      send(p);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(memory.p_full(at.slot));
    if (++tile == work.tiles.end) tile = work.tiles.begin;
  };
  ptx::mbarrier_wait(memory.keys_full(), 0);
  const int steps = work.steps(a);
  if (steps > 0) {
    begin_scores();
    ptx::wgmma_wait<0>();
    to_probabilities();
    hand_over();
    bool add = false;  // the first product is the sum, and then gets the others
    for (int step = 1; step < steps; ++step, add = true) {
      at.next();
      begin_scores();
      begin_sum(at.before(), add);
      ptx::wgmma_wait<1>();
      to_probabilities();
      ptx::wgmma_wait<0>();
      ptx::hold(dv);
      ptx::hold(p);
      release(memory.dout_ring(), at.before());
      hand_over();
    }
    begin_sum(at, add);
    ptx::wgmma_wait<0>();
    ptx::hold(dv);
  } else {
#pragma unroll
    for (float& x : dv) x = 0;
  }
  write_sum<Shape>(dv, 1, memory.k(), a.dv, 0, work.first_k, work.kv_head, work.batch);
}

// The warpgroup of dP and dK
template <class Shape>
__device__ __forceinline__ void sum_dk(const WideArgs& a, const WideKeysMemory& memory) {
  const WideKeysWork work(a);
  float dk[128], dp[32];
  uint32_t ds[16];
  RingPlace<2> at;
  const auto begin_gradients = [&] {
    memory.dout_ring().wait_full(at);
    ptx::wgmma_fence();
    multiply_rows_rows<WideShape::kRows>(dp, memory.v(), 0, memory.dout(at.slot), 0);
    ptx::wgmma_commit();
  };
  const auto begin_sum = [&](RingPlace<2> of, bool add) {
    ptx::hold(ds);
    ptx::hold(dk);
    ptx::wgmma_fence();
    multiply_registers_rows<WideShape::kHeadDim, WideShape::kRows>(dk, ds, memory.q(of.slot), 0, 0, add);
    ptx::wgmma_commit();
  };
  const auto take_over = [&](uint32_t(&p)[16]) {
    ptx::hold(dp);
    release(memory.dout_ring(), at);
    memory.q_ring().wait_full(at);  // delta comes with Q
    ptx::mbarrier_wait(memory.p_full(at.slot), at.turn);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 four = ptx::load_shared_uint4(memory.exchange(at.slot) + i * (kWarpgroup * 16));
      p[4 * i] = four.x, p[4 * i + 1] = four.y, p[4 * i + 2] = four.z, p[4 * i + 3] = four.w;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(memory.p_empty(at.slot));
    const ColumnStatistics delta(memory.rows(at.slot) + WideShape::kRows * 4);
    score_gradients<false>(p, dp, delta);
    ptx::hold(p);
  };
  ptx::mbarrier_wait(memory.keys_full(), 0);
  const int steps = work.steps(a);
  if (steps > 0) {
    begin_gradients();
    ptx::wgmma_wait<0>();
    take_over(ds);
    bool add = false;
    for (int step = 1; step < steps; ++step, add = true) {
      at.next();
      begin_gradients();
      begin_sum(at.before(), add);
      ptx::wgmma_wait<1>();
      uint32_t next[16];
      take_over(next);
      ptx::wgmma_wait<0>();
      ptx::hold(dk);
      ptx::hold(ds);
      release(memory.q_ring(), at.before());
#pragma unroll
      for (int i = 0; i < 16; ++i) ds[i] = next[i];
    }
    begin_sum(at, add);
    ptx::wgmma_wait<0>();
    ptx::hold(dk);
  } else {
#pragma unroll
    for (float& x : dk) x = 0;
  }
  write_sum<Shape>(dk, Shape::Score::derivative(a.score), memory.v(), a.dk, 1, work.first_k, work.kv_head,
                   work.batch);
}

template <class Shape>
__global__ void __launch_bounds__(WideShape::kThreads, 1)
    wide_keys_kernel(const __grid_constant__ WideArgs a) {
  const WideKeysMemory memory;
  if (threadIdx.x == 0) memory.init_barriers();
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == WideShape::kConsumers) {
    ptx::give_registers<WideShape::kProducerRegisters>();
    if (threadIdx.x == WideShape::kConsumers * kWarpgroup) load_for_keys<Shape>(a, memory);
  } else {
    ptx::take_registers<WideShape::kConsumerRegisters>();
    warpgroup == 0 ? sum_dv<Shape>(a, memory) : sum_dk<Shape>(a, memory);
  }
}

}  // namespace tessera::attention::sm90
