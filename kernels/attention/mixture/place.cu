// place_rows: gives each query of a key/value head a row for each block that it sees.
//
// Rows are in the order of blocks. For each block, the queries whose own it is come first, token by token,
// then the queries that chose it. So a row sees an interval of keys, and neither end of it falls from row to
// row; likewise an interval of rows sees a key. The rows of a block that queries may choose begin at a
// multiple of RowTables::kAlignment, and so do the rows after it: a tile of rows has one such block. The
// order is fixed (by query, then by head, then by block), so sums over rows have the same bits every time.
//
//   count_kernel   counts the chosen blocks of kChunk queries, by slot
//   first_kernel   a CTA for each key/value head: counts become sums over the chunks before, and a scan over
//                  the keys gives the first row of each block
//   own_kernel     a thread for each query and head: the row of its own block
//   chosen_kernel  a warp for each chunk: the rows of chosen blocks. Lanes with the same block count the
//                  lanes before them
//   gap_kernel     a thread for each row: an unused row sees no key, by an empty interval behind the keys of
//                  the row before it
//   key_kernel     a thread for each key: the rows that see it
#include "kernels/attention/common/launch.cuh"
#include "kernels/attention/mixture/rows.h"

namespace tessera::attention {
namespace {

constexpr int kThreads = 256, kScanThreads = 1024;
constexpr unsigned kWholeWarp = ~0u;

// The tables of one key/value head: see of_head()
struct Tables {
  Mask mask;
  Choice choice;
  int group, slots, chunks;
  int64_t most_rows;
  const int32_t* chosen;  // [group, queries, others]
  int32_t *keys, *seen_by, *sources, *places, *first_rows, *counts, *totals, *used;

  __device__ __forceinline__ Tables of_head(int64_t head) const {
    Tables t = *this;
    t.chosen += head * group * mask.queries * choice.others;
    t.keys += head * most_rows * 2, t.seen_by += head * mask.keys * 2, t.sources += head * most_rows;
    t.places += head * mask.queries * group * (choice.others + 1), t.first_rows += head * mask.keys;
    t.counts += head * chunks * slots, t.totals += head * slots, t.used += head;
    return t;
  }
  // The choices of the queries of a chunk are numbered by query, then by head, then by place in the choice.
  __device__ __forceinline__ int choices_of_chunk(int chunk) const {
    return (min(RowTables::kChunk, mask.queries - chunk * RowTables::kChunk)) * group * choice.others;
  }
  struct Chosen {
    int source, place, key;  // source: query x group + head; place: among the chosen of the query
  };
  __device__ __forceinline__ Chosen choice_number(int chunk, int i) const {
    const int source = i / choice.others + chunk * RowTables::kChunk * group, place = i % choice.others;
    const int64_t row = int64_t{source % group} * mask.queries + source / group;
    return {source, place, chosen[row * choice.others + place]};
  }
  __device__ __forceinline__ int rows_of_owners(const Choice::Block& block) const {
    return choice.owners(mask, block).size() * group;
  }
  __device__ __forceinline__ int rows_of(const Choice::Block& block) const {
    return rows_of_owners(block) + (block.choosable ? totals[block.keys.begin / choice.size] : 0);
  }
  __device__ __forceinline__ void write(int64_t row, int source, int place, Span seen) const {
    sources[row] = source;
    keys[2 * row] = seen.begin, keys[2 * row + 1] = seen.end;
    places[int64_t{source} * (choice.others + 1) + place] = static_cast<int32_t>(row);
  }
};

__device__ __forceinline__ int aligned(int row) {
  return (row + RowTables::kAlignment - 1) / RowTables::kAlignment * RowTables::kAlignment;
}

__global__ void __launch_bounds__(kThreads) count_kernel(Tables all) {
  const Tables t = all.of_head(blockIdx.y);
  const int chunk = blockIdx.x, count = t.choices_of_chunk(chunk);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int key = t.choice_number(chunk, i).key;
    if (key >= 0) atomicAdd(&t.counts[int64_t{chunk} * t.slots + key / t.choice.size], 1);
  }
}

// The first free row after some blocks, as a function of the first free row x before them:
//   x + before, or, if queries may choose one of the blocks, aligned(x + before) + after
struct RowsBehind {
  int before = 0, after = 0;
  bool aligns = false;

  __device__ __forceinline__ int from(int row) const {
    return aligns ? aligned(row + before) + after : row + before;
  }
  __device__ __forceinline__ void add(int rows, bool choosable) {
    if (choosable) {
      after = aligns ? aligned(after) + aligned(rows) : aligned(rows);
      aligns = true;
    } else {
      (aligns ? after : before) += rows;
    }
  }
  // The function of these blocks followed by the later ones
  __device__ __forceinline__ RowsBehind then(const RowsBehind& later) const {
    if (!aligns) return {before + later.before, later.after, later.aligns};
    if (!later.aligns) return {before, after + later.before, true};
    return {before, aligned(after + later.before) + later.after, true};
  }
};

__global__ void __launch_bounds__(kScanThreads) first_kernel(Tables all) {
  __shared__ RowsBehind scan[2][kScanThreads];
  const Tables t = all.of_head(blockIdx.x);
  const int me = static_cast<int>(threadIdx.x);
  for (int slot = me; slot < t.slots; slot += kScanThreads) {
    int sum = 0;
    for (int chunk = 0; chunk < t.chunks; ++chunk) {
      int32_t& count = t.counts[int64_t{chunk} * t.slots + slot];
      const int own = count;
      count = sum;
      sum += own;
    }
    t.totals[slot] = sum;
  }
  __syncthreads();  // the totals are there
  const int each = (t.mask.keys + kScanThreads - 1) / kScanThreads,
            begin = static_cast<int>(min(int64_t{me} * each, int64_t{t.mask.keys})),
            end = min(begin + each, t.mask.keys);
  const auto each_block = [&](const auto& visit) {
    for (int key = begin; key < end; ++key) {
      const Choice::Block block = t.choice.block_of(t.mask, key);
      visit(key, block, block.keys.begin == key);
    }
  };
  RowsBehind mine;
  each_block([&](int, const Choice::Block& block, bool begins) {
    if (begins) mine.add(t.rows_of(block), block.choosable);
  });
  int from = 0;
  scan[0][me] = mine;
  for (int step = 1; step < kScanThreads; step *= 2) {
    __syncthreads();
    const RowsBehind own = scan[from][me];
    scan[1 - from][me] = me >= step ? scan[from][me - step].then(own) : own;
    from = 1 - from;
  }
  __syncthreads();
  int row = me > 0 ? scan[from][me - 1].from(0) : 0;
  each_block([&](int key, const Choice::Block& block, bool begins) {
    t.first_rows[key] = begins && block.choosable ? aligned(row) : row;
    if (!begins) return;
    RowsBehind one;
    one.add(t.rows_of(block), block.choosable);
    row = one.from(row);
  });
  if (me == kScanThreads - 1) *t.used = row;
}

__global__ void __launch_bounds__(kThreads) own_kernel(Tables all) {
  const Tables t = all.of_head(blockIdx.y);
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (number >= int64_t{t.mask.queries} * t.group) return;
  const int source = static_cast<int>(number), query = source / t.group;
  const Span own = t.choice.own(t.mask, query);
  if (own.empty()) {
    t.places[int64_t{source} * (t.choice.others + 1) + t.choice.others] = -1;
    return;
  }
  const int before = query - t.mask.queries_of(own.begin).begin;  // queries of this block
  t.write(int64_t{t.first_rows[own.begin]} + before * t.group + source % t.group, source, t.choice.others,
          own);
}

__global__ void __launch_bounds__(32) chosen_kernel(Tables all) {
  const Tables t = all.of_head(blockIdx.y);
  const int chunk = blockIdx.x, count = t.choices_of_chunk(chunk), lane = static_cast<int>(threadIdx.x);
  int32_t* before = t.counts + int64_t{chunk} * t.slots;
  for (int first = 0; first < count; first += 32) {
    const bool there = first + lane < count;
    const Tables::Chosen chosen = there ? t.choice_number(chunk, first + lane) : Tables::Chosen{0, 0, -1};
    const int slot = chosen.key < 0 ? -1 : chosen.key / t.choice.size;
    const unsigned same = __match_any_sync(kWholeWarp, static_cast<unsigned>(slot));
    const int earlier = slot < 0 ? 0 : before[slot];
    __syncwarp();  // all lanes have read what one of them now adds to
    if (slot >= 0) {
      const int rank = __popc(same & ((1u << lane) - 1));
      if (rank == 0) before[slot] = earlier + __popc(same);
      const Choice::Block block = t.choice.block_of(t.mask, chosen.key);
      t.write(int64_t{t.first_rows[chosen.key]} + t.rows_of_owners(block) + earlier + rank, chosen.source,
              chosen.place, block.keys);
    } else if (there) {
      t.places[int64_t{chosen.source} * (t.choice.others + 1) + chosen.place] = -1;
    }
    __syncwarp();  // it has been added
  }
}

// Fewer than 2 kAlignment unused rows lie between the rows of two queries, so the search back is short.
__global__ void __launch_bounds__(kThreads) gap_kernel(Tables all) {
  const Tables t = all.of_head(blockIdx.y);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (row >= t.most_rows || t.sources[row] >= 0) return;
  int end = row < *t.used ? 0 : t.mask.keys;
  if (row < *t.used)
    for (int64_t before = row - 1; before >= 0; --before)
      if (t.sources[before] >= 0) {
        end = t.keys[2 * before + 1];
        break;
      }
  t.keys[2 * row] = t.keys[2 * row + 1] = end;
}

__global__ void __launch_bounds__(kThreads) key_kernel(Tables all) {
  const Tables t = all.of_head(blockIdx.y);
  const int64_t number = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (number >= t.mask.keys) return;
  const int key = static_cast<int>(number);
  const Choice::Block block = t.choice.block_of(t.mask, key);
  int first = t.first_rows[key], end = first;
  if (block.keys.begin >= 0) {
    const Span owners = t.choice.owners(t.mask, block);
    const int begin = min(max(t.mask.queries_of(key).begin, owners.begin), owners.end);
    first = t.first_rows[block.keys.begin];
    end = first + t.rows_of(block);
    first += (begin - owners.begin) * t.group;
  }
  t.seen_by[2 * number] = first, t.seen_by[2 * number + 1] = end;
}

}  // namespace

AttnStatus place_rows(const AttnProblem& p, const int32_t* first_keys, const RowTables& r,
                      CUstream_st* stream) {
  const Choice choice = choice_of(p);
  const Tables tables{.mask = mask_of(p),
                      .choice = choice,
                      .group = static_cast<int>(p.heads / p.kv_heads),
                      .slots = r.slots,
                      .chunks = r.chunks,
                      .most_rows = r.rows,
                      .chosen = first_keys,
                      .keys = r.keys,
                      .seen_by = r.seen_by,
                      .sources = r.sources,
                      .places = r.places,
                      .first_rows = r.first_rows,
                      .counts = r.counts,
                      .totals = r.totals,
                      .used = r.used};
  const auto kv_heads = static_cast<unsigned>(p.kv_heads);
  const size_t heads = kv_heads,
               counts = heads * static_cast<size_t>(r.chunks) * static_cast<size_t>(r.slots);
  if (cudaMemsetAsync(r.counts, 0, counts * sizeof(int32_t), stream) != cudaSuccess ||
      cudaMemsetAsync(r.sources, 0xff, heads * static_cast<size_t>(r.rows) * sizeof(int32_t), stream) !=
          cudaSuccess)
    return ATTN_LAUNCH_FAILED;
  const auto ctas = [&](int64_t threads) {
    return dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads), kv_heads);
  };
  const dim3 chunks(static_cast<unsigned>(r.chunks), kv_heads);
  const bool chooses = choice.others > 0;
  AttnStatus status = ATTN_OK;
  const auto then = [&](auto* kernel, dim3 grid, int threads) {
    if (status == ATTN_OK) status = launch(kernel, grid, threads, 0, stream, tables);
  };
  if (chooses) then(count_kernel, chunks, kThreads);
  then(first_kernel, dim3(kv_heads), kScanThreads);
  then(own_kernel, ctas(p.heads / p.kv_heads * p.tokens), kThreads);
  if (chooses) then(chosen_kernel, chunks, 32);
  then(gap_kernel, ctas(r.rows), kThreads);
  then(key_kernel, ctas(p.kv_tokens), kThreads);
  return status;
}

}  // namespace tessera::attention
