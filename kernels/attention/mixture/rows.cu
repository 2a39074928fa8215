// Rows of queries, gathered and merged: a thread takes 16 bytes of a row.
#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/view.h"
#include "kernels/attention/mixture/rows.h"
#include "kernels/attention/mixture/values.cuh"

namespace tessera::attention {
namespace {

constexpr int kThreads = 256;

// The row and the piece of a thread, where a row has `pieces` pieces
struct Piece {
  int64_t row;
  int piece;

  __device__ __forceinline__ explicit Piece(int pieces)
      : row((static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / pieces),
        piece(static_cast<int>((static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) % pieces)) {}
};
dim3 ctas_of(int64_t rows, int pieces, int64_t heads) {
  return dim3(static_cast<unsigned>((rows * pieces + kThreads - 1) / kThreads), static_cast<unsigned>(heads));
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(View<const T> from, const int32_t* sources, int64_t rows, int group, int pieces, T* to) {
  const Piece mine(pieces);
  if (mine.row >= rows) return;
  const int64_t row = blockIdx.y * rows + mine.row;
  const int source = sources[row];
  uint4 value{0, 0, 0, 0};
  if (source >= 0)
    value = reinterpret_cast<const uint4*>(from.head_begin(0, int64_t{blockIdx.y} * group + source % group) +
                                           source / group * from.row)[mine.piece];
  reinterpret_cast<uint4*>(to)[row * pieces + mine.piece] = value;
}

__global__ void __launch_bounds__(kThreads)
    gather_lse_kernel(const float* lse, const int32_t* sources, int64_t rows, int group, int64_t tokens,
                      float* to) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= rows) return;
  const int source = sources[blockIdx.y * rows + row];
  to[blockIdx.y * rows + row] =
      source < 0 ? -INFINITY : lse[(int64_t{blockIdx.y} * group + source % group) * tokens + source / group];
}

// The rows of a query of a head, among the rows of its key/value head
struct RowsOfQuery {
  const int32_t* places;
  int count;
  int64_t first;  // the first row of the key/value head

  __device__ __forceinline__ RowsOfQuery(const int32_t* all, int64_t query, int64_t tokens, int group,
                                         int rows_each, int64_t rows)
      : places(all + ((blockIdx.y / group * tokens + query) * group + blockIdx.y % group) * rows_each),
        count(rows_each),
        first(blockIdx.y / group * rows) {}
  // Calls visit(row) for each row, in the order of `places`.
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    for (int i = 0; i < count; ++i)
      if (places[i] >= 0) visit(first + places[i]);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(View<T> out, float* lse, const int32_t* places, const T* rows_out, const float* rows_lse,
                 int64_t tokens, int group, int rows_each, int64_t rows, int pieces) {
  const Piece mine(pieces);
  if (mine.row >= tokens) return;
  const RowsOfQuery query(places, mine.row, tokens, group, rows_each, rows);
  float most = -INFINITY;
  query.each([&](int64_t row) { most = fmaxf(most, rows_lse[row]); });
  float sum = 0, values[kValues<T>] = {};
  if (most != -INFINITY)
    query.each([&](int64_t row) {
      const float weight = expf(rows_lse[row] - most);
      float own[kValues<T>];
      load_values(rows_out + (row * pieces + mine.piece) * kValues<T>, own);
      sum += weight;
#pragma unroll
      for (int i = 0; i < kValues<T>; ++i) values[i] = fmaf(weight, own[i], values[i]);
    });
  const float share = sum == 0 ? 0 : 1 / sum;
#pragma unroll
  for (int i = 0; i < kValues<T>; ++i) values[i] *= share;
  store_values(out.head_begin(0, blockIdx.y) + mine.row * out.row + mine.piece * kValues<T>, values);
  if (mine.piece == 0) lse[blockIdx.y * tokens + mine.row] = sum == 0 ? -INFINITY : most + logf(sum);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(View<T> to, const int32_t* places, const T* from, int64_t tokens, int group, int rows_each,
               int64_t rows, int pieces) {
  const Piece mine(pieces);
  if (mine.row >= tokens) return;
  float sum[kValues<T>] = {};
  RowsOfQuery(places, mine.row, tokens, group, rows_each, rows).each([&](int64_t row) {
    float own[kValues<T>];
    load_values(from + (row * pieces + mine.piece) * kValues<T>, own);
#pragma unroll
    for (int i = 0; i < kValues<T>; ++i) sum[i] += own[i];
  });
  store_values(to.head_begin(0, blockIdx.y) + mine.row * to.row + mine.piece * kValues<T>, sum);
}

template <class F>
AttnStatus with_type(const AttnProblem& p, F&& f) {
  return p.dtype == ATTN_BF16 ? f(__nv_bfloat16{}) : f(float{});
}
int group_of(const AttnProblem& p) { return static_cast<int>(p.heads / p.kv_heads); }
template <class T>
int pieces_of(const AttnProblem& p) {
  return p.head_dim / kValues<T>;
}

}  // namespace

AttnStatus gather_rows(const AttnProblem& p, const RowTables& tables, const GatheredRows& rows,
                       CUstream_st* stream) {
  return with_type(p, [&]<class T>(T) {
    const int pieces = pieces_of<T>(p);
    return launch(gather_kernel<T>, ctas_of(tables.rows, pieces, p.kv_heads), kThreads, 0, stream,
                  view<const T>(rows.from), static_cast<const int32_t*>(tables.sources), tables.rows,
                  group_of(p), pieces, static_cast<T*>(rows.to));
  });
}

AttnStatus gather_lse(const AttnProblem& p, const RowTables& tables, const float* lse, float* to,
                      CUstream_st* stream) {
  return launch(gather_lse_kernel, ctas_of(tables.rows, 1, p.kv_heads), kThreads, 0, stream, lse,
                static_cast<const int32_t*>(tables.sources), tables.rows, group_of(p), p.tokens, to);
}

AttnStatus merge_rows(const AttnProblem& p, const RowTables& tables, const MixtureWorkspace& rows,
                      const AttnTensor& out, float* lse, CUstream_st* stream) {
  return with_type(p, [&]<class T>(T) {
    const int pieces = pieces_of<T>(p);
    return launch(merge_kernel<T>, ctas_of(p.tokens, pieces, p.heads), kThreads, 0, stream, view<T>(out), lse,
                  static_cast<const int32_t*>(tables.places), static_cast<const T*>(rows.out),
                  static_cast<const float*>(rows.lse), p.tokens, group_of(p), choice_of(p).others + 1,
                  tables.rows, pieces);
  });
}

AttnStatus sum_rows(const AttnProblem& p, const RowTables& tables, const MixtureWorkspace& rows,
                    const AttnTensor& dq, CUstream_st* stream) {
  return with_type(p, [&]<class T>(T) {
    const int pieces = pieces_of<T>(p);
    return launch(sum_kernel<T>, ctas_of(p.tokens, pieces, p.heads), kThreads, 0, stream, view<T>(dq),
                  static_cast<const int32_t*>(tables.places), static_cast<const T*>(rows.dq), p.tokens,
                  group_of(p), choice_of(p).others + 1, tables.rows, pieces);
  });
}

}  // namespace tessera::attention
