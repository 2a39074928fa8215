// choose_blocks: computes the mean key of each block, then finds the blocks with the largest products for
// each query.
//
//   means_kernel   a CTA for each slot and key/value head. Its threads form groups. A group adds up every
//                  `groups`-th key of the block, a thread 16 bytes of each key. The groups' sums are then
//                  added in order.
//   choose_kernel  a CTA takes kRows queries of a head past all means, kSlots at a time. Products are in
//                  fp32, each summed from the first element to the last, so that the CPU gets the same.
//                  Those above the smallest that a query has kept are marked. Then a thread for each query
//                  keeps the largest, the earlier of equal ones first.
#include <cmath>
#include <cstdint>

#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/common/view.h"
#include "kernels/attention/mixture.h"
#include "kernels/attention/mixture/values.cuh"

namespace tessera::attention {
namespace {

constexpr int kThreads = kMeanThreads;

template <class T>
__global__ void __launch_bounds__(kThreads)
    means_kernel(View<const T> k, Mask mask, Choice choice, int head_dim, float* means) {
  __shared__ int begin;
  const int slot = blockIdx.x, head = blockIdx.y, me = static_cast<int>(threadIdx.x);
  if (me == 0) begin = mask.keys;
  __syncthreads();
  const int64_t end = min((int64_t{slot} + 1) * choice.size, int64_t{mask.keys});
  for (int64_t key = int64_t{slot} * choice.size + me; key < end; key += kThreads) {
    const Choice::Block block = choice.block_of(mask, static_cast<int>(key));
    if (block.choosable && block.keys.begin == key) atomicMin(&begin, static_cast<int>(key));
  }
  __syncthreads();
  if (begin == mask.keys) return;  // no query may choose a block that begins here
  write_mean(k.head_begin(0, head) + int64_t{begin} * k.row, k.row, choice.size, head_dim,
             means + (int64_t{head} * gridDim.x + slot) * head_dim);
}

constexpr int kRows = 64, kSlots = 64, kDepth = 32, kSide = 16, kEach = kRows / kSide;
static_assert(kRows == kSlots && kSide * kSide == kThreads);

// The largest scores of a query so far, in falling order, the earlier of equal ones first
struct Largest {
  float* scores;
  int* slots;
  int most, count = 0;

  __device__ __forceinline__ void add(float score, int slot) {
    if (!(score > -INFINITY)) score = -INFINITY;  // NaN counts as -inf
    int place = count;
    if (count == most) {
      if (most == 0 || !(score > scores[most - 1])) return;
      place = most - 1;
    } else {
      ++count;
    }
    for (; place > 0 && score > scores[place - 1]; --place)
      scores[place] = scores[place - 1], slots[place] = slots[place - 1];
    scores[place] = score, slots[place] = slot;
  }
  __device__ __forceinline__ void sort_by_slot() {
    for (int i = 1; i < count; ++i) {
      const int slot = slots[i];
      int place = i;
      for (; place > 0 && slots[place - 1] > slot; --place) slots[place] = slots[place - 1];
      slots[place] = slot;
    }
  }
};

// Loads elements [from, from + kDepth) of kRows rows, transposed. Rows are `stride` elements apart. Elements
// past the end of a row, and rows from `rows` on, become 0.
template <class T>
__device__ __forceinline__ void load_tile(const T* first, int64_t stride, int rows, int from, int head_dim,
                                          float (&to)[kDepth][kRows + 4]) {
  constexpr int kWidth = kValues<T>;
  const int row = static_cast<int>(threadIdx.x) % kRows;
  for (int d = static_cast<int>(threadIdx.x) / kRows * kWidth; d < kDepth; d += kThreads / kRows * kWidth) {
    float values[kWidth] = {};
    if (row < rows && from + d < head_dim) load_values(first + row * stride + from + d, values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[d + i][row] = values[i];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    choose_kernel(View<const T> q, Mask mask, Choice choice, int head_dim, int group, int slots,
                  const float* means, int32_t* first_keys) {
  extern __shared__ float kept[];  // [kRows, others] scores, then as many slots
  __shared__ union {
    struct {
      float q[kDepth][kRows + 4], means[kDepth][kSlots + 4];
    } tiles;
    float scores[kRows][kSlots + 1];
  } shared;
  __shared__ int first, end;
  __shared__ float least[kRows];  // the row keeps only scores above it; NaN: any score
  __shared__ unsigned above[kRows][kSlots / 32];
  const int me = static_cast<int>(threadIdx.x), head = blockIdx.y,
            row = static_cast<int>(blockIdx.x) * kRows + me;
  const bool has_row = me < kRows && row < mask.queries;
  if (me == 0) first = slots, end = 0;
  if (me < kRows) least[me] = NAN, above[me][0] = above[me][1] = 0;
  __syncthreads();
  int own_first = 0, own_end = 0;  // slots of this thread's query
  Span keys{0, 0};
  if (has_row) {
    keys = mask.keys_of(row);
    own_first = choice.first_slot(keys), own_end = own_first + choice.candidates(keys);
    if (own_first < own_end) atomicMin(&first, own_first), atomicMax(&end, own_end);
  }
  __syncthreads();
  Largest largest{kept + me % kRows * choice.others,
                  reinterpret_cast<int*>(kept + kRows * choice.others) + me % kRows * choice.others,
                  choice.others};
  const T* queries = q.head_begin(0, head) + int64_t{blockIdx.x} * kRows * q.row;
  const float* of_head = means + int64_t{head / group} * slots * head_dim;
  const int rows = min(kRows, mask.queries - static_cast<int>(blockIdx.x) * kRows), i0 = me / kSide * kEach,
            j0 = me % kSide * kEach;
  for (int slot = first; slot < end; slot += kSlots) {
    float sums[kEach][kEach] = {};
    for (int from = 0; from < head_dim; from += kDepth) {
      __syncthreads();  // the tiles, and the scores in their place, have been read
      load_tile(queries, q.row, rows, from, head_dim, shared.tiles.q);
      load_tile(of_head + int64_t{slot} * head_dim, head_dim, end - slot, from, head_dim, shared.tiles.means);
      __syncthreads();
#pragma unroll 8
      for (int d = 0; d < kDepth; ++d) {
        float a[kEach], b[kEach];
        load_values(&shared.tiles.q[d][i0], a);
        load_values(&shared.tiles.means[d][j0], b);
#pragma unroll
        for (int i = 0; i < kEach; ++i)
#pragma unroll
          for (int j = 0; j < kEach; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float most = least[i0 + i];
      unsigned bits = 0;
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        shared.scores[i0 + i][j0 + j] = sums[i][j];
        bits |= !(sums[i][j] <= most) ? 1u << j : 0u;
      }
      if (bits != 0) atomicOr(&above[i0 + i][j0 / 32], bits << j0 % 32);
    }
    __syncthreads();
    if (!has_row) continue;
    for (int word = 0; word < kSlots / 32; ++word) {
      for (unsigned bits = above[me][word]; bits != 0; bits &= bits - 1) {
        const int at = word * 32 + __ffs(static_cast<int>(bits)) - 1;
        if (slot + at >= own_first && slot + at < own_end) largest.add(shared.scores[me][at], slot + at);
      }
      above[me][word] = 0;
    }
    if (largest.count == largest.most) least[me] = largest.scores[largest.most - 1];
  }
  if (!has_row) return;
  largest.sort_by_slot();
  int32_t* to = first_keys + (int64_t{head} * mask.queries + row) * choice.others;
  for (int i = 0; i < choice.others; ++i)
    to[i] = i < largest.count ? keys.begin + (largest.slots[i] - own_first) * choice.size : -1;
}

template <class T>
AttnStatus choose(const AttnProblem& p, const AttnTensor& q, const AttnTensor& k,
                  const ChoiceWorkspace& workspace, CUstream_st* stream) {
  const Choice choice = choice_of(p);
  const Mask mask = mask_of(p);
  const int head_dim = p.head_dim, group = static_cast<int>(p.heads / p.kv_heads), slots = workspace.slots;
  const dim3 of_slots(static_cast<unsigned>(slots), static_cast<unsigned>(p.kv_heads));
  const AttnStatus status = launch(means_kernel<T>, of_slots, kThreads, 0, stream, view<const T>(k), mask,
                                   choice, head_dim, workspace.means);
  if (status != ATTN_OK) return status;
  const dim3 of_rows(static_cast<unsigned>((p.tokens + kRows - 1) / kRows), static_cast<unsigned>(p.heads));
  const int kept = kRows * choice.others * static_cast<int>(sizeof(float) + sizeof(int));
  return launch(choose_kernel<T>, of_rows, kThreads, kept, stream, view<const T>(q), mask, choice, head_dim,
                group, slots, static_cast<const float*>(workspace.means), workspace.first_keys);
}

}  // namespace

AttnStatus choose_blocks(const AttnProblem& p, const AttnTensor& q, const AttnTensor& k,
                         const ChoiceWorkspace& workspace, CUstream_st* stream) {
  if (choice_of(p).others == 0) return ATTN_OK;
  return p.dtype == ATTN_BF16 ? choose<__nv_bfloat16>(p, q, k, workspace, stream)
                              : choose<float>(p, q, k, workspace, stream);
}

}  // namespace tessera::attention
