// Forward attention in fp32: the algorithm of sm80/forward.cuh without tensor cores.
//
//   for a tile of queries Q_i [T, D]:  O = 0, m = -inf, sum = 0
//     for every key tile j of which a query of the tile sees a key:
//       S = Q_i K_j^T [T, T];  m, P, sum, O = online softmax of S;  O += P V_j
//     O /= sum, LSE = scale m + ln(sum)
// With dropout, P is 0 where it drops, after the sum; O is multiplied by its scale.
#include "kernels/attention/f32/kernels.h"
#include "kernels/attention/f32/tile.cuh"

namespace tessera::attention::f32 {
namespace {

struct Args : ForwardTensors<float>, Sizes {
  int tiles;   // of queries
  float* lse;  // [B, H, N]
  int head_dim;
  Mask mask;  // of the first sequence
  Extras extras;
};

template <int kHeadDim>
struct Memory {
  static constexpr int kT = kTile<kHeadDim>;
  using Rows = SharedTile<kT, kHeadDim>;
  using Scores = SharedTile<kT, kT>;
  static constexpr int kBytes = (3 * Rows::kFloats + Scores::kFloats) * 4;
  static_assert(kBytes <= kSharedEverywhere);
};

// The largest, or the sum, of a value over the 16 threads of a row
__device__ float row_max(float x) {
  for (int other = kSide / 2; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, other));
  return x;
}
__device__ float row_sum(float x) {
  for (int other = kSide / 2; other > 0; other /= 2) x += __shfl_xor_sync(~0u, x, other);
  return x;
}

template <int kHeadDim, bool kPlain>
__global__ void __launch_bounds__(kThreads, 1) forward_kernel(const Args a) {
  using M = Memory<kHeadDim>;
  constexpr int kT = M::kT, kRows = kT / kSide;
  extern __shared__ __align__(16) float memory[];
  const typename M::Rows q{memory}, k{q.data + q.kFloats}, v{k.data + k.kFloats};
  const typename M::Scores p{v.data + v.kFloats};
  __shared__ KeptScores<kT> kept;
  const Place at;

  const int tile = a.tiles - 1 - blockIdx.x % a.tiles;  // causal: the longest first
  const int head_index = blockIdx.x / a.tiles, b = head_index / a.heads, h = head_index % a.heads,
            kv_head = h / a.group;
  const Mask mask = a.mask.of_sequence(b);
  const int first_q = tile * kT;
  const Span rows = tile_span<kT>(first_q, mask.queries), key_tiles = mask.keys_of(rows).tiles(kT);
  const ScaledScore score(a.score);
  const bool drops = !kPlain && a.extras.drops, capped = !kPlain && a.extras.capped,
             biased = !kPlain && a.extras.alibi;
  const RawBias bias = biased ? raw_bias<AlibiScore>(a.extras.alibi, h, a.score.scale) : RawBias{0};
  const int token = drops ? kept.token(mask, first_q) : 0;

  load<kPlain>(q, a.q.head_begin(b, h), a.q.row, first_q, a.tokens, a.head_dim);
  Accumulator<kT, kHeadDim> o;
  float max[kRows], sum[kRows];
  for (int i = 0; i < kRows; ++i) max[i] = -INFINITY, sum[i] = 0;

  const Walk walk = kPlain ? Walk{} : a.extras.keys_of<kT>(h, first_q);
  for (int j = walk.from(key_tiles.begin); j < key_tiles.end; j = walk.from(j + 1)) {
    const int first_k = j * kT;
    const Span columns = tile_span<kT>(first_k, mask.keys);
    const bool whole = mask.whole(rows, columns);
    __syncthreads();  // other warps may still be reading the last K, V
    load<kPlain>(k, a.k.head_begin(b, kv_head), a.k.row, first_k, mask.keys, a.head_dim);
    load<kPlain>(v, a.v.head_begin(b, kv_head), a.v.row, first_k, mask.keys, a.head_dim);
    if (drops) kept.draw(a.extras.dropout, b, h, token, first_k);
    __syncthreads();  // K, V (and Q) were written by all threads, and are read by all

    Accumulator<kT, kT> s;
    multiply_rows_rows(s, q, k);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int row = at.ty + kSide * i;
      const Span seen = seen_by(first_q + row, mask, whole, columns);
      if (biased) add_bias(s.at[i], bias, first_q + row, first_k, mask);
      if (capped) {
#pragma unroll
        for (int c = 0; c < kRows; ++c) s.at[i][c] = a.extras.cap.exact(s.at[i][c]);
      }
      float new_max = max[i];
#pragma unroll
      for (int c = 0; c < kRows; ++c) {
        if (!seen.contains(first_k + at.tx + kSide * c)) s.at[i][c] = -INFINITY;
        new_max = fmaxf(new_max, s.at[i][c]);
      }
      new_max = row_max(new_max);
      const float offset = new_max == -INFINITY ? 0 : score.log2_rounded(new_max);
      const float rescale = exp2f(score.log2_rounded(max[i]) - offset);  // by 1 where the maximum stays
      max[i] = new_max;
      // Fused into the sum of the first x; a tile of 16 rows rounds it by itself.
      sum[i] = kRows == 1 ? __fmul_rn(sum[i], rescale) : sum[i] * rescale;
#pragma unroll
      for (int c = 0; c < kRows; ++c) {
        const float x = exp2f(score.log2_above(s.at[i][c], offset));
        sum[i] += x;
        p.at(row, at.tx + kSide * c) = !drops || kept.at(row, c, at.tx) ? x : 0;
      }
#pragma unroll
      for (int d = 0; d < kHeadDim / kSide; ++d) o.at[i][d] *= rescale;
    }
    __syncwarp();  // a row of P is written and read by the same half warp
    multiply_rows_cols(o, p, v);
  }

#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first_q + at.ty + kSide * i;
    const float total = row_sum(sum[i]);
    if (at.tx == 0 && row < a.tokens) {
      a.lse[static_cast<int64_t>(head_index) * a.tokens + row] = (score.log2(max[i]) + log2f(total)) * kLn2;
    }
#pragma unroll
    for (int d = 0; d < kHeadDim / kSide; ++d) o.at[i][d] /= total == 0 ? 1 : total;  // 0: scores are -inf
  }
  store<kPlain>(o, a.out.head_begin(b, h), a.out.row, first_q, a.tokens, a.head_dim,
                drops ? a.extras.dropout.scale() : 1);
}

}  // namespace

AttnStatus forward(const AttnForward& f, int /*arch*/, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const Extras extras(p);
  return with_head_dim(p.head_dim, extras, [&]<int kHeadDim, bool kPlain>() {
    const Args args = {
        tensors_of<float>(f), sizes_of(p), tiles_of<kHeadDim>(mask_of(p).queries), f.lse, p.head_dim,
        mask_of(p),           extras};
    const auto ctas = static_cast<unsigned>(p.batch * p.heads * args.tiles);
    return launch(forward_kernel<kHeadDim, kPlain>, ctas, kThreads, Memory<kHeadDim>::kBytes, stream, args);
  });
}

}  // namespace tessera::attention::f32
