// Backward attention in fp32, without atomics: the same bits every time.
//
//   delta kernel     delta = rowsum(dO o O)                                                      [N]
//   keys kernel      for a tile of keys K_j, V_j [T, D], over the query tiles i that see it, of every query
//                    head that shares K and V:
//                      P^T = exp(scale K_j Q_i^T - LSE_i), dS^T = P^T o (V_j dO_i^T - delta_i)   [T, T]
//                      dV += P^T dO_i, dK += dS^T Q_i;   at the end dK *= scale
//   queries kernel   for a tile of queries Q_i, dO_i [T, D], over the key tiles j that it sees:
//                      P and dS as above, untransposed;  dQ += dS K_j;   at the end dQ *= scale
//
// With dropout, dV is of what is kept of P, and V_j dO_i^T is 0 where P is dropped; both times its scale.
// Computing the scores twice costs two products of seven; sums over CTAs would cost an order of additions.
#include "kernels/attention/f32/kernels.h"
#include "kernels/attention/f32/tile.cuh"
#include "kernels/attention/workspace.h"

namespace tessera::attention::f32 {
namespace {

struct Args : BackwardTensors<float>, Sizes {
  int query_tiles, key_tiles;
  const float* lse;  // [B, H, N]
  float* delta;      // [B, H, N]
  int head_dim;
  Mask mask;  // of the first sequence
  Extras extras;
};

template <int kHeadDim>
struct Memory {
  static constexpr int kT = kTile<kHeadDim>;
  using Rows = SharedTile<kT, kHeadDim>;
  using Scores = SharedTile<kT, kT>;
  static constexpr int kBytes = (4 * Rows::kFloats + Scores::kFloats) * 4;
  static_assert(kBytes <= kSharedEverywhere);

  Rows q, k, v, dout;
  Scores scores;
  __device__ explicit Memory(float* m)
      : q{m},
        k{m + Rows::kFloats},
        v{m + 2 * Rows::kFloats},
        dout{m + 3 * Rows::kFloats},
        scores{m + 4 * Rows::kFloats} {}
};

// One warp a row
__global__ void __launch_bounds__(kThreads, 1) delta_kernel(const Args a, int64_t rows) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= rows) return;
  const int head_index = static_cast<int>(row / a.tokens), t = static_cast<int>(row % a.tokens);
  const float* out = a.out.head_begin(head_index / a.heads, head_index % a.heads) + t * a.out.row;
  const float* dout = a.dout.head_begin(head_index / a.heads, head_index % a.heads) + t * a.dout.row;
  float sum = 0;
  for (int d = threadIdx.x % 32; d < a.head_dim; d += 32) sum = fmaf(out[d], dout[d], sum);
  for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(~0u, sum, other);
  if (threadIdx.x % 32 == 0) a.delta[row] = sum;
}

struct RowStatistics {
  float log2_sum_exp, delta;
};
__device__ RowStatistics statistics_of(const Args& a, int head_index, int query) {
  const bool real = query < a.tokens;
  const int64_t row = static_cast<int64_t>(head_index) * a.tokens + query;
  return {real ? log2_sum_exp_of(a.lse[row]) : 0, real ? a.delta[row] : 0};
}

// An element of P (what is kept of it) and of dS from the products that they are made of; 0 where the query
// does not see the key
struct Gradient {
  float p, ds;
};
template <bool kPlain>
__device__ __forceinline__ Gradient gradient_of(const Args& a, bool seen, float product, float dp,
                                                RowStatistics row, bool kept) {
  const bool capped = !kPlain && a.extras.capped;
  if (!kPlain && a.extras.drops) dp = kept ? dp * a.extras.dropout.scale() : 0;
  if (capped) product = a.extras.cap.exact(product);
  const float p = exp2f(ScaledScore(a.score).log2_above(product, row.log2_sum_exp));
  float ds = p * (dp - row.delta);
  if (capped) ds *= a.extras.cap.derivative(product);
  return {seen && kept ? p : 0, seen ? ds : 0};
}

template <int kHeadDim, bool kPlain>
__global__ void __launch_bounds__(kThreads, 1) keys_kernel(const Args a) {
  constexpr int kT = kTile<kHeadDim>, kPart = kT / kSide;
  extern __shared__ __align__(16) float memory[];
  const Memory<kHeadDim> m(memory);
  __shared__ KeptScores<kT> kept;
  const Place at;
  const int tile = blockIdx.x % a.key_tiles;  // causal: the longest first
  const int b = blockIdx.x / a.key_tiles / a.kv_heads, kv_head = blockIdx.x / a.key_tiles % a.kv_heads;
  const Mask mask = a.mask.of_sequence(b);
  const int first_k = tile * kT;
  const Span columns = tile_span<kT>(first_k, mask.keys), query_tiles = mask.queries_of(columns).tiles(kT);

  load<kPlain>(m.k, a.k.head_begin(b, kv_head), a.k.row, first_k, mask.keys, a.head_dim);
  load<kPlain>(m.v, a.v.head_begin(b, kv_head), a.v.row, first_k, mask.keys, a.head_dim);
  const bool drops = !kPlain && a.extras.drops, biased = !kPlain && a.extras.alibi;
  Accumulator<kT, kHeadDim> dk, dv;
  const Walk walk = kPlain ? Walk{} : a.extras.queries_of<kT>(kv_head, first_k);
  for (int h = kv_head * a.group; h < (kv_head + 1) * a.group; ++h) {
    const RawBias bias = biased ? raw_bias<AlibiScore>(a.extras.alibi, h, a.score.scale) : RawBias{0};
    for (int i = walk.from(query_tiles.begin); i < query_tiles.end; i = walk.from(i + 1)) {
      const int first_q = i * kT;
      const bool whole = mask.whole(tile_span<kT>(first_q, mask.queries), columns);
      __syncthreads();  // other warps may still be reading the last Q, dO
      load<kPlain>(m.q, a.q.head_begin(b, h), a.q.row, first_q, a.tokens, a.head_dim);
      load<kPlain>(m.dout, a.dout.head_begin(b, h), a.dout.row, first_q, a.tokens, a.head_dim);
      if (drops) kept.draw(a.extras.dropout, b, h, kept.token(mask, first_q), first_k);
      __syncthreads();  // the tiles were written by all threads, and are read by all

      Accumulator<kT, kT> p, ds;
      multiply_rows_rows(p, m.k, m.q);
      multiply_rows_rows(ds, m.v, m.dout);
#pragma unroll
      for (int c = 0; c < kPart; ++c) {
        const int query = first_q + at.tx + kSide * c;
        const RowStatistics row = statistics_of(a, b * a.heads + h, query);
        const Span seen = seen_by(query, mask, whole, columns);
        if (biased) {
          const int position = mask.position_of(min(query, mask.queries - 1));
#pragma unroll
          for (int r = 0; r < kPart; ++r) p.at[r][c] += bias.of(position, first_k + at.ty + kSide * r);
        }
#pragma unroll
        for (int r = 0; r < kPart; ++r) {
          const bool is_seen = seen.contains(first_k + at.ty + kSide * r);
          const bool is_kept = !drops || kept.at(at.tx + kSide * c, r, at.ty);
          const Gradient g = gradient_of<kPlain>(a, is_seen, p.at[r][c], ds.at[r][c], row, is_kept);
          m.scores.at(at.ty + kSide * r, at.tx + kSide * c) = g.p;
          ds.at[r][c] = g.ds;
        }
      }
      __syncwarp();  // a row of scores is written and read by the same half warp
      multiply_rows_cols(dv, m.scores, m.dout);
      __syncwarp();  // P^T is read: its place can take dS^T
#pragma unroll
      for (int c = 0; c < kPart; ++c) {
#pragma unroll
        for (int r = 0; r < kPart; ++r) m.scores.at(at.ty + kSide * r, at.tx + kSide * c) = ds.at[r][c];
      }
      __syncwarp();
      multiply_rows_cols(dk, m.scores, m.q);
    }
  }
  store<kPlain>(dk, a.dk.head_begin(b, kv_head), a.dk.row, first_k, mask.keys, a.head_dim,
                ScaledScore::derivative(a.score));
  store<kPlain>(dv, a.dv.head_begin(b, kv_head), a.dv.row, first_k, mask.keys, a.head_dim,
                drops ? a.extras.dropout.scale() : 1);
}

template <int kHeadDim, bool kPlain>
__global__ void __launch_bounds__(kThreads, 1) queries_kernel(const Args a) {
  constexpr int kT = kTile<kHeadDim>, kPart = kT / kSide;
  extern __shared__ __align__(16) float memory[];
  const Memory<kHeadDim> m(memory);
  __shared__ KeptScores<kT> kept;
  const Place at;
  const int tile = a.query_tiles - 1 - blockIdx.x % a.query_tiles;  // causal: the longest first
  const int head_index = blockIdx.x / a.query_tiles, b = head_index / a.heads, h = head_index % a.heads,
            kv_head = h / a.group;
  const Mask mask = a.mask.of_sequence(b);
  const int first_q = tile * kT;
  const Span queries = tile_span<kT>(first_q, mask.queries), key_tiles = mask.keys_of(queries).tiles(kT);

  load<kPlain>(m.q, a.q.head_begin(b, h), a.q.row, first_q, a.tokens, a.head_dim);
  load<kPlain>(m.dout, a.dout.head_begin(b, h), a.dout.row, first_q, a.tokens, a.head_dim);
  const bool drops = !kPlain && a.extras.drops, biased = !kPlain && a.extras.alibi;
  const int token = drops ? kept.token(mask, first_q) : 0;
  const RawBias bias = biased ? raw_bias<AlibiScore>(a.extras.alibi, h, a.score.scale) : RawBias{0};
  RowStatistics rows[kPart];
#pragma unroll
  for (int r = 0; r < kPart; ++r) rows[r] = statistics_of(a, head_index, first_q + at.ty + kSide * r);
  Accumulator<kT, kHeadDim> dq;
  const Walk walk = kPlain ? Walk{} : a.extras.keys_of<kT>(h, first_q);
  for (int j = walk.from(key_tiles.begin); j < key_tiles.end; j = walk.from(j + 1)) {
    const int first_k = j * kT;
    const Span columns = tile_span<kT>(first_k, mask.keys);
    const bool whole = mask.whole(queries, columns);
    __syncthreads();  // other warps may still be reading the last K, V
    load<kPlain>(m.k, a.k.head_begin(b, kv_head), a.k.row, first_k, mask.keys, a.head_dim);
    load<kPlain>(m.v, a.v.head_begin(b, kv_head), a.v.row, first_k, mask.keys, a.head_dim);
    if (drops) kept.draw(a.extras.dropout, b, h, token, first_k);
    __syncthreads();  // the tiles were written by all threads, and are read by all

    Accumulator<kT, kT> p, ds;
    multiply_rows_rows(p, m.q, m.k);
    multiply_rows_rows(ds, m.dout, m.v);
#pragma unroll
    for (int r = 0; r < kPart; ++r) {
      const int query = first_q + at.ty + kSide * r;
      // Read again rather than kept: with extras this loop is short of registers.
      if (!kPlain) rows[r] = statistics_of(a, head_index, query);
      const Span seen = seen_by(query, mask, whole, columns);
      if (biased) add_bias(p.at[r], bias, query, first_k, mask);
#pragma unroll
      for (int c = 0; c < kPart; ++c) {
        const bool is_seen = seen.contains(first_k + at.tx + kSide * c);
        const bool is_kept = !drops || kept.at(at.ty + kSide * r, c, at.tx);
        m.scores.at(at.ty + kSide * r, at.tx + kSide * c) =
            gradient_of<kPlain>(a, is_seen, p.at[r][c], ds.at[r][c], rows[r], is_kept).ds;
      }
    }
    __syncwarp();  // a row of scores is written and read by the same half warp
    multiply_rows_cols(dq, m.scores, m.k);
  }
  store<kPlain>(dq, a.dq.head_begin(b, h), a.dq.row, first_q, a.tokens, a.head_dim,
                ScaledScore::derivative(a.score));
}

template <int kHeadDim, bool kPlain>
AttnStatus launch_backward(const AttnBackward& f, const Extras& extras, CUstream_st* stream) {
  const AttnProblem& p = f.problem;
  const DeltaWorkspace workspace(f.workspace, p);
  const Mask mask = mask_of(p);
  const Args args = {tensors_of<float>(f),
                     sizes_of(p),
                     tiles_of<kHeadDim>(mask.queries),
                     tiles_of<kHeadDim>(mask.keys),
                     f.lse,
                     workspace.delta,
                     p.head_dim,
                     mask,
                     extras};
  const int64_t rows = p.batch * p.heads * p.tokens;
  constexpr int kRowsPerCta = kThreads / 32, kBytes = Memory<kHeadDim>::kBytes;
  const auto row_ctas = static_cast<unsigned>((rows + kRowsPerCta - 1) / kRowsPerCta);
  const auto key_ctas = static_cast<unsigned>(p.batch * p.kv_heads * args.key_tiles),
             query_ctas = static_cast<unsigned>(p.batch * p.heads * args.query_tiles);
  AttnStatus status = launch(delta_kernel, row_ctas, kThreads, 0, stream, args, rows);
  if (status == ATTN_OK)
    status = launch(keys_kernel<kHeadDim, kPlain>, key_ctas, kThreads, kBytes, stream, args);
  if (status == ATTN_OK)
    status = launch(queries_kernel<kHeadDim, kPlain>, query_ctas, kThreads, kBytes, stream, args);
  return status;
}

}  // namespace

AttnStatus backward(const AttnBackward& f, int /*arch*/, CUstream_st* stream) {
  const Extras extras(f.problem);
  return with_head_dim(f.problem.head_dim, extras, [&]<int kHeadDim, bool kPlain>() {
    return launch_backward<kHeadDim, kPlain>(f, extras, stream);
  });
}

}  // namespace tessera::attention::f32
