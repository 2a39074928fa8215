// Forward attention in FP8: both products by tensor cores of e4m3, sums in fp32. Method: FlashAttention-3
// (Shah et al., arXiv:2407.08608), with a scale for each block of keys.
//
//   Q, K and V are written in e4m3 before (fp8_quantise.cuh), each block of 128 rows with a scale
//   for every tile of queries that this CTA takes, slices of 64, one a warpgroup:        Q_i [64, D]
//     O = 0, m = -inf, sum = 0
//     for every key tile j, from the last that the slice sees down to 0:                 K_j, V_j [128, D]
//       S = Q_i K_j^T, times the scales of both; masked where it crosses the diagonal or the end
//       m, P, sum = online softmax of S, with powers up to 2^8.8: e4m3 ends at 448 = 2^8.8
//       O += scale_j (P V_j)                       64 columns at a time, in registers of their own
//     O /= sum, LSE = (m + log2(sum)) ln(2)
//
// The tensor cores add in some 14 bits, so that a sum over many keys would lose what is small: each key
// tile's P V begins at 0, and is added to O in fp32, where it gets the scale of V.
//
// The tensor cores also compute the sums of the softmax: V is followed by columns of ones. These sums are of
// P as it is rounded, so the weights of a row add up to 1. (D = 256 has no room in shared memory for the
// columns: its threads add.)
//
// The first thread of one more warpgroup loads. A warpgroup does not overlap its products with its softmax:
// a product takes half as long as in bf16, and the exponentials as long as in bf16. The registers that
// overlap needs serve a third warpgroup instead (D = 256: two). While some do softmax, another uses the
// tensor cores: they take turns with Q K^T, so that they do not all wait for them at the same time.
#pragma once

#include <cuda_fp8.h>

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/fp8_quantise.cuh"
#include "kernels/hopper/tensor_map.h"

namespace tessera::attention::sm90 {

struct Fp8ForwardArgs : ForwardArgs {
  const float *q_scales, *k_scales, *v_scales;  // [B, H or K, blocks]
  int q_blocks, k_blocks, kv_heads;
};

// Two bytes stand where an element of bf16 does. V is transposed.
template <class Shape>
requires(Shape::kFp8) struct ForwardTiles<Shape> {
  using Q = Tile<kWarpgroupRows, Shape::kRowBytes / 2>;
  using K = Tile<Shape::kBlockK, Shape::kRowBytes / 2>;
  using V = Tile<Shape::kHeadDim + Shape::kSumRows, Shape::kBlockK / 2>;
  static constexpr bool kOwnOut = true;
  static constexpr int kLoadedOfV = Shape::kHeadDim * Shape::kBlockK;  // bytes
};

// The scale is that of a tile of keys. Probabilities fill the range of e4m3: they are 2^(c x - m + 7), and m
// lags by no more than what is left up to 448.
struct Fp8Score : ScaledScore {
  static constexpr float kSlack = 1.8f, kBits = 7;

  __device__ __forceinline__ float log2_above(float x, float offset) const {
    return fmaf(x, log2_scale, kBits - offset);
  }
};

// Probabilities to e4m3, as the A operand of a product in registers, in the order of fp8_quantise.cuh
template <int kCount>
__device__ __forceinline__ void pack_e4m3(uint32_t (&packed)[kCount / 4], const float (&x)[kCount]) {
  const auto pair = [](float low, float high) -> uint32_t {
    return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
  };
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i) {  // 16 keys
    const float* s = &x[8 * i];
    packed[2 * i] = pair(s[0], s[1]) | pair(s[4], s[5]) << 16;
    packed[2 * i + 1] = pair(s[2], s[3]) | pair(s[6], s[7]) << 16;
  }
}

// One of the warpgroups that compute
template <class Shape, bool kCausal>
struct Fp8Consumer {
  using Memory = ForwardMemory<Shape>;
  using WorkTile = ForwardWorkTile<Shape>;
  static constexpr bool kSumsOfProduct = Shape::kSumRows > 0;
  using Softmax = OnlineSoftmax<kSumsOfProduct ? SumOrder::kOfProduct : SumOrder::kPairs, Fp8Score>;
  static constexpr int kHeadDim = Shape::kHeadDim, kBlockK = Shape::kBlockK, kPart = Shape::kPartColumns,
                       kParts = kHeadDim / kPart;

  const Fp8ForwardArgs& a;
  const Memory memory;
  const int warpgroup;
  float o[kHeadDim / 2];
  typename Memory::QRing::Place q_at;
  typename Memory::KVRing::Place kv_at;

  static __device__ __forceinline__ bool leader() { return threadIdx.x % kWarpgroup == 0; }
  // One arrival a warp, so that each vouches for its own reads
  template <int kSlots>
  static __device__ __forceinline__ void release(Ring<kSlots> ring, RingPlace<kSlots> at) {
    if (threadIdx.x % 32 == 0) ring.release(at);
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == Shape::kConsumers - 1) pass_turn<Shape>(warpgroup);
    for (;;) {
      memory.q_ring(warpgroup).wait_full(q_at);
      const WorkTile work = WorkTile::load(memory.work(warpgroup, q_at.slot));
      if (work.key_tiles < 0) break;
      Span mine{work.key_tiles, work.key_tiles};
      if (work.row < a.tokens) {
        if constexpr (Shape::kAnyMask) {
          mine = work.keys.tiles;
        } else {
          mine = {0, key_tiles<Shape, kCausal>(a.tokens, work.row + kWarpgroupRows)};
        }
      }
      skip(work.key_tiles - mine.end);
      if (!mine.empty()) attend(work, mine);
      release(memory.q_ring(warpgroup), q_at);
      q_at.next();
      skip(mine.begin - work.first_key_tile);
    }
    if (leader()) ptx::bulk_wait_read<0>();
  }

  // Key tiles that the slice does not see
  __device__ __forceinline__ void skip(int tiles) {
    for (; tiles > 0; --tiles) {
      memory.k_ring().wait_full(kv_at);
      take_turn(warpgroup);
      pass_turn<Shape>(warpgroup);
      release(memory.k_ring(), kv_at);
      memory.v_ring().wait_full(kv_at);
      release(memory.v_ring(), kv_at);
      kv_at.next();
    }
  }

  // O += scale P V, and the sums: a part is added while the next one is computed
  __device__ __forceinline__ void add_values(uint32_t (&p)[kBlockK / 8], float scale, Softmax& softmax) {
    float even[kPart / 2], odd[(kPart + Shape::kSumRows) / 2];  // the last part is odd
    const auto begin = [&](auto& part, int n) {
      constexpr int kColumns = 2 * std::extent_v<std::remove_reference_t<decltype(part)>>;
      ptx::hold(p);
      ptx::wgmma_fence();
      multiply_register_bytes<kColumns, kBlockK>(part, p, memory.v(kv_at.slot), n * kPart, 0);
      ptx::wgmma_commit();
    };
    const auto add = [&](auto& part, int n) {
      ptx::hold(part);
#pragma unroll
      for (int i = 0; i < kPart / 2; ++i)
        o[n * (kPart / 2) + i] = fmaf(part[i], scale, o[n * (kPart / 2) + i]);
    };
    if constexpr (kParts == 1) {
      begin(odd, 0);
      ptx::wgmma_wait<0>();
      add(odd, 0);
    } else {
      begin(even, 0);
#pragma unroll
      for (int n = 0; n < kParts; n += 2) {
        begin(odd, n + 1);
        ptx::wgmma_wait<1>();
        add(even, n);
        if (n + 2 < kParts) {
          begin(even, n + 2);
          ptx::wgmma_wait<1>();
        } else {
          ptx::wgmma_wait<0>();
        }
        add(odd, n + 1);
      }
    }
    if constexpr (kSumsOfProduct) {
#pragma unroll
      for (int r = 0; r < 2; ++r) softmax.sum[r] += odd[kPart / 2 + 2 * r];
    }
    ptx::hold(p);
  }

  // A slice from its first scores to its output, of the key tiles `mine`
  __device__ __forceinline__ void attend(const WorkTile& work, Span mine) {
    auto q = memory.q(warpgroup, q_at.slot);
    const SliceMask<Shape, kCausal> mask(a.tokens, work, memory.rows_keys(warpgroup, q_at.slot));
    const int heads = a.schedule.heads();
    const float q_scale =
        a.score.scale * kLog2e *
        __ldg(a.q_scales + (int64_t{work.batch} * heads + work.head) * a.q_blocks + work.row / kFp8Block);
    const int64_t of_keys =
        (int64_t{work.batch} * a.kv_heads + work.head / (heads / a.kv_heads)) * a.k_blocks;
    Softmax softmax;
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0;
    for (int j = mine.end - 1; j >= mine.begin; --j) {
      softmax.score.log2_scale =
          fmaxf(q_scale * __ldg(a.k_scales + of_keys + j), 1e-30f);  // above 0: -inf times 0 is NaN
      const float v_scale = __ldg(a.v_scales + of_keys + j);
      uint32_t p[kBlockK / 8];
      {
        float s[kBlockK / 2];
        ptx::opaque(q.base);  // else descriptors of Q are computed ahead, and fill the registers
        memory.k_ring().wait_full(kv_at);
        take_turn(warpgroup);
        ptx::wgmma_fence();
        multiply_bytes<kBlockK, kHeadDim>(s, q, 0, memory.k(kv_at.slot), 0);
        ptx::wgmma_commit();
        ptx::wgmma_wait<0>();
        pass_turn<Shape>(warpgroup);
        ptx::hold(s);
        release(memory.k_ring(), kv_at);
        mask.apply(s, j);
        softmax.raise(s);
        softmax.exponentiate(s);
        pack_e4m3(p, s);
      }
      if (softmax.behind) softmax.rescale(o);
      memory.v_ring().wait_full(kv_at);
      add_values(p, v_scale, softmax);
      release(memory.v_ring(), kv_at);
      kv_at.next();
    }
    write(work, softmax);
  }

  __device__ __forceinline__ void write(const WorkTile& work, Softmax& softmax) {
    softmax.finish(o);
    uint32_t packed[kHeadDim / 4];
    pack(packed, o);
    const auto out = memory.o(warpgroup);
    if (leader()) ptx::bulk_wait_read<0>();  // the tile before may still be on its way
    ptx::barrier_sync(own_barrier(warpgroup), kWarpgroup);
    store_fragment(out, 0, 0, packed);
    ptx::fence_shared_for_async();
    ptx::barrier_sync(own_barrier(warpgroup), kWarpgroup);
    float* lse = a.lse + static_cast<int64_t>(work.batch * a.schedule.heads() + work.head) * a.tokens;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int at = work.row + lane_row() + 8 * r;
      if (threadIdx.x % 4 == 0 && at < a.tokens) lse[at] = softmax.log_sum_exp(r);
    }
    if (leader()) {
      store_tile<false>(a.out, out, work.row, work.head, work.batch);
      ptx::bulk_commit();
    }
  }
};

// Writes the columns after those of V. Every second one has ones: a thread holds two neighbouring columns,
// and so one sum of each of its rows.
template <class Shape>
__device__ __forceinline__ void write_ones(const ForwardMemory<Shape>& memory) {
  constexpr int kChunks = Shape::kBlockK / 16, kOfSlot = Shape::kSumRows * kChunks;
  constexpr uint32_t kOnes = 0x38383838;  // four times 1 in e4m3
  for (int i = threadIdx.x; i < Shape::kKVSlots * kOfSlot; i += blockDim.x) {
    const int row = i % kOfSlot / kChunks;
    const uint32_t word = row % 2 == 0 ? kOnes : 0;
    ptx::store_shared(memory.v(i / kOfSlot).chunk_at(Shape::kHeadDim + row, i % kChunks),
                      make_uint4(word, word, word, word));
  }
  ptx::fence_shared_for_async();
}

template <class Shape, bool kCausal>
__global__ void __launch_bounds__((Shape::kConsumers + 1) * kWarpgroup, 1)
    fp8_forward_kernel(const __grid_constant__ Fp8ForwardArgs a) {
  const ForwardMemory<Shape> memory;
  if (threadIdx.x == 0) {
    for (int w = 0; w < Shape::kConsumers; ++w) memory.q_ring(w).init(kWarpsPerGroup);
    memory.k_ring().init(Shape::kConsumers * kWarpsPerGroup);
    memory.v_ring().init(Shape::kConsumers * kWarpsPerGroup);
    ptx::fence_mbarrier_init();
  }
  if constexpr (Shape::kSumRows > 0) write_ones(memory);
  __syncthreads();
  const int warpgroup = __shfl_sync(~0u, threadIdx.x / kWarpgroup, 0);
  if (warpgroup == Shape::kConsumers) {
    ptx::give_registers<Shape::kProducerRegisters>();
    if (threadIdx.x == Shape::kConsumers * kWarpgroup) produce<Shape, kCausal>(a, memory);
  } else {
    ptx::take_registers<Shape::kConsumerRegisters>();
    Fp8Consumer<Shape, kCausal>{a, memory, warpgroup}.run();
  }
}

template <class Shape>
AttnStatus launch_fp8_forward(const AttnForward& f, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  int device, sms;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    return ATTN_LAUNCH_FAILED;
  }
  const Fp8Workspace to(f.workspace, p);
  if (const AttnStatus status = fp8_quantise<Shape::kHeadDim>(f, to, stream); status != ATTN_OK)
    return status;
  Fp8ForwardArgs args{ForwardArgs{.schedule = ForwardSchedule(p, kWarpgroupRows, Shape::kConsumers, sms),
                                  .lse = f.lse,
                                  .tokens = static_cast<int>(p.tokens),
                                  .score = score_args_of(p),
                                  .dropout = DropoutMask(dropout_of(p))},
                      to.q_scales,
                      to.k_scales,
                      to.v_scales,
                      static_cast<int>(to.q_blocks),
                      static_cast<int>(to.k_blocks),
                      static_cast<int>(p.kv_heads)};
  // Two bytes stand where an element of bf16 does.
  const auto bytes = [&](CUtensorMap& map, uint8_t* data, int64_t heads, int64_t rows, int64_t row_bytes,
                         Box box) {
    return make_tensor_map(
        map, HeadBoxes{.tensor = {data, heads * rows * row_bytes / 2, row_bytes / 2, rows * row_bytes / 2},
                       .batch = p.batch,
                       .tokens = rows,
                       .heads = heads,
                       .box = box});
  };
  const auto of_rows = [&](int rows) { return box_of(Shape::kRowBytes / 2, Shape::kRowBytes / 2, rows); };
  if (!bytes(args.q, to.q, p.heads, to.q_blocks * kFp8Block, Shape::kRowBytes, of_rows(kWarpgroupRows)) ||
      !bytes(args.k, to.k, p.kv_heads, to.k_blocks * kFp8Block, Shape::kRowBytes, of_rows(Shape::kBlockK)) ||
      !bytes(
          args.v, to.v, p.kv_heads, Shape::kHeadDim, to.k_blocks * kFp8Block,
          {.columns = static_cast<int>(to.k_blocks * kFp8Block / 2), .panels = 1, .rows = Shape::kHeadDim}) ||
      !make_tensor_map(args.out,
                       HeadBoxes{.tensor = view<void>(f.out),
                                 .batch = p.batch,
                                 .tokens = p.tokens,
                                 .heads = p.heads,
                                 .box = {.columns = p.head_dim, .panels = 1, .rows = kWarpgroupRows}}))
    return ATTN_LAUNCH_FAILED;
  auto kernel = fp8_forward_kernel<Shape, false>;
  if constexpr (Shape::kAnyMask) {
    if (const AttnStatus status = find_spans<Shape>(&args, f, stream); status != ATTN_OK) return status;
  } else if (p.mask.causal) {
    kernel = fp8_forward_kernel<Shape, true>;
  }
  const dim3 grid(std::min(sms, args.schedule.items()));
  return launch(kernel, grid, (Shape::kConsumers + 1) * kWarpgroup, ForwardMemory<Shape>::kAskFor, stream,
                args);
}

}  // namespace tessera::attention::sm90
