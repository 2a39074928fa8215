// A warp's part of a GEMV, a row x times W^T: see linear.cuh.
#pragma once

#include "kernels/cuda/decode_step/flags.cuh"

namespace tessera::cuda::decode_step {

__device__ __forceinline__ float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }

// Rows of A: x; with a norm x g and its rest; with LayerNorm g and h, too
__host__ __device__ constexpr int rows_of(InstructionNorm norm) {
  return norm == InstructionNorm::kNone ? 1 : norm == InstructionNorm::kRmsNorm ? 2 : kMostRows;
}
__host__ __device__ constexpr int x_bytes(InstructionNorm norm, int elements) {
  return rows_of(norm) * pitch_of(elements);
}

// A warp's columns of a chunk: whole k-steps of the mma. Columns behind those of W and x are zeros.
struct Slice {
  int begin, steps;

  __device__ __forceinline__ Slice(int elements) {
    const int all = (elements + kStepColumns - 1) / kStepColumns, each = (all + kWarps - 1) / kWarps,
              before = static_cast<int>(threadIdx.x / kWarp) * each;
    begin = before * kStepColumns, steps = min(each, all - before);  // perhaps less than 0
  }
};

// What a lane reads of an instruction's operands
struct Operands {
  uint32_t x;  // shared address of the lane's row of A; rows behind the last are computed and not used
  uint32_t w;  // from the begin of an entry to the lane's row of W, likewise
  int chunks;
  Slice full, last;

  __device__ __forceinline__ Operands(const Block& b, const Instruction& s)
      : chunks((s.C + kChunk - 1) / kChunk), full(kChunk), last(s.C - (chunks - 1) * kChunk) {
    const int row = threadIdx.x % kWarp / 4, bytes = threadIdx.x % 4 * 16;
    x = Block::address(b.region) + min(row, rows_of(s.norm) - 1) * pitch_of(s.C) + bytes;
    w = min(row, slots_of(s) - 1) * entry_pitch(s) + bytes;
  }
  __device__ __forceinline__ Slice slice(int chunk) const { return chunk + 1 == chunks ? last : full; }
  __device__ __forceinline__ int after(int chunk) const { return chunk + 1 == chunks ? 0 : chunk + 1; }
};

// The four columns that a lane takes of x in a chunk
struct Own {
  int column;  // of all
  bool exists;

  __device__ __forceinline__ Own(const Operands& of, int chunk) {
    const Slice slice = of.slice(chunk);
    const int lane = threadIdx.x % kWarp;
    column = chunk * kChunk + slice.begin + 4 * lane;
    exists = chunk < of.chunks && 4 * lane < slice.steps * kStepColumns;
  }
};

// The pairs of eight columns of a row of A lie in the order 0, 2, 1, 3: see Accumulators
__device__ __forceinline__ void store_four(uint32_t row, int column, uint2 elements) {
  const uint32_t to = row + column / 8 * 16 + column % 8;
  ptx::store_shared(to, elements.x), ptx::store_shared(to + 8, elements.y);
}

// The norm's weight g for a lane's columns of each chunk. With LayerNorm g and h also become rows of A.
struct NormWeights {
  uint2 g[kMostNormed / kChunk];

  __device__ __forceinline__ void take(const Block& b, const Instruction& s, const Operands& of, uint32_t x,
                                       Reader& reader) {
    const uint32_t from = reader.wait(b), pitch = pitch_of(s.C);
#pragma unroll
    for (int i = 0; i < kMostNormed / kChunk; ++i) {
      const Own own(of, i);
      if (!own.exists) continue;
      const bool is_column = own.column < s.C;
      g[i] = is_column ? ptx::load_shared_uint2(from + 2 * own.column) : uint2{};
      if (s.norm != InstructionNorm::kLayerNorm) continue;
      const uint2 h = is_column ? ptx::load_shared_uint2(from + 2 * (s.C + own.column)) : uint2{};
      store_four(x + 2 * pitch, own.column, g[i]);
      store_four(x + 3 * pitch, own.column, h);
    }
    reader.give_back(b);
  }
};

// This warp's columns of x in kChunks chunks, from chunk `first` on, to shared memory, once they have
// their flags. Adds to a lane's sums of x and of its squares.
template <int kChunks>
__device__ __forceinline__ void take_chunks(const Block& b, const Instruction& s, const Operands& of,
                                            uint32_t x, const NormWeights& norm, int first, float2& sums) {
  const uint32_t flag = b.flag(s.x_from), pitch = pitch_of(s.C);
  const uint32_t* from[kChunks];
  bool exists[kChunks];  // and is waited for; other columns are 0
  uint4 raw[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const Own own(of, first + i);
    from[i] = b.values + s.x + own.column;
    exists[i] = own.exists && own.column < s.C;
    raw[i] = {flag, flag, flag, flag};
    if (exists[i]) raw[i] = ptx::load_relaxed_uint4(from[i]);
  }
  spin_until(
      [&] {
        bool ready = true;
#pragma unroll
        for (const uint4& packed : raw) ready = ready && has_flag(packed, flag);
        return ready;
      },
      [&] {
#pragma unroll
        for (int i = 0; i < kChunks; ++i)
          if (exists[i]) raw[i] = ptx::load_relaxed_uint4(from[i]);
      });
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const Own own(of, first + i);
    uint2 elements = elements_of(raw[i]);
    if (s.norm != InstructionNorm::kNone) {
      const float values[4] = {value_of(raw[i].x), value_of(raw[i].y), value_of(raw[i].z),
                               value_of(raw[i].w)};
      const float scaled[4] = {values[0] * low_of(norm.g[i].x), values[1] * high_of(norm.g[i].x),
                               values[2] * low_of(norm.g[i].y), values[3] * high_of(norm.g[i].y)};
#pragma unroll
      for (const float value : values) sums.x += value, sums.y += value * value;
      elements = {ptx::pack_bf16(scaled[0], scaled[1]), ptx::pack_bf16(scaled[2], scaled[3])};
      const uint2 rest = {ptx::pack_bf16(scaled[0] - low_of(elements.x), scaled[1] - high_of(elements.x)),
                          ptx::pack_bf16(scaled[2] - low_of(elements.y), scaled[3] - high_of(elements.y))};
      if (own.exists) store_four(x + pitch, own.column, rest);
    }
    if (own.exists) store_four(x, own.column, elements);
  }
}
__device__ __forceinline__ float2 take_x(const Block& b, const Instruction& s, const Operands& of, uint32_t x,
                                         const NormWeights& norm) {
  constexpr int kAtOnce = kMostNormed / kChunk;
  float2 sums = {};
  if (of.chunks == 1)
    take_chunks<1>(b, s, of, x, norm, 0, sums);
  else
    for (int first = 0; first < of.chunks; first += kAtOnce)
      take_chunks<kAtOnce>(b, s, of, x, norm, first, sums);
  __syncwarp();  // every lane reads the warp's columns
  return sums;
}

// This warp's part of an entry of W. The lanes of a row have 8 columns each of a step.
struct Weights {
  uint4 w[kSliceSteps];

  __device__ __forceinline__ void take(const Block& b, const Operands& of, Slice slice, Reader& reader) {
    const uint32_t from = reader.wait(b) + of.w + 2 * slice.begin;
#pragma unroll
    for (int i = 0; i < kSliceSteps; ++i)
      if (i < slice.steps) w[i] = ptx::load_shared_uint4(from + 2 * i * kStepColumns);
    reader.give_back(b);
  }
};

// This warp's sums of an entry times the rows of A. Of four registers an mma takes two for the rows 0 to 7
// of A and two for the rows 8 to 15, of which there are none. So the four registers with 8 columns of x serve
// two mma: lanes 4 r to 4 r + 3 have row r's results of one in d[0] and d[1], of the other in d[2] and d[3].
struct Accumulators {
  float d[2][4] = {};

  // The sums of row r, in lanes 4 r to 4 r + 3
  __device__ __forceinline__ float2 sums() const { return {d[0][0] + d[1][2], d[0][1] + d[1][3]}; }

  template <int kSteps>
  __device__ __forceinline__ void add(const uint4 (&x)[kSteps], const Weights& weights) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint4& w = weights.w[i];
      ptx::mma_m16n8k16(d[0], {x[i].x, x[i].y, x[i].z, x[i].w}, w.x, w.y);
      ptx::mma_m16n8k16(d[1], {x[i].x, x[i].y, x[i].z, x[i].w}, w.z, w.w);
    }
  }
};

template <int kSteps>
__device__ __forceinline__ void load_x(uint4 (&x)[kSteps], const Operands& of, int chunk, Slice slice) {
  const uint32_t from = of.x + 2 * (chunk * kChunk + slice.begin);
#pragma unroll
  for (int i = 0; i < kSteps; ++i) x[i] = ptx::load_shared_uint4(from + 2 * i * kStepColumns);
}

// f<n>() for n from 1 to kMost
template <int kMost, class F>
__device__ __forceinline__ void with_count(int n, F f) {
  if constexpr (kMost > 0) {
    if (n == kMost)
      f.template operator()<kMost>();
    else
      with_count<kMost - 1>(n, f);
  }
}

// Multiplies `count` entries, the first of which is of `chunk`. What can be read ahead is.
__device__ __forceinline__ void multiply(Accumulators (&sums)[kBatch], const Operands& of, int chunk,
                                         int count, const Weights (&weights)[kBatch]) {
  if (of.chunks == 1) {  // all with the same x
    with_count<kSliceSteps>(of.last.steps, [&]<int kSteps>() {
      uint4 x[kSteps];
      load_x(x, of, 0, of.last);
      with_count<kBatch>(count, [&]<int kEntries>() {
#pragma unroll
        for (int i = 0; i < kEntries; ++i) sums[i].add(x, weights[i]);
      });
    });
    return;
  }
  if (of.last.steps == kSliceSteps) {
    with_count<kBatch>(count, [&]<int kEntries>() {
      uint4 x[kEntries][kSliceSteps];
#pragma unroll
      for (int i = 0; i < kEntries; ++i) {
        load_x(x[i], of, chunk, of.full);
        chunk = of.after(chunk);
      }
#pragma unroll
      for (int i = 0; i < kEntries; ++i) sums[i].add(x[i], weights[i]);
    });
    return;
  }
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (i >= count) break;
    const Slice slice = of.slice(chunk);
    with_count<kSliceSteps>(slice.steps, [&]<int kSteps>() {
      uint4 x[kSteps];
      load_x(x, of, chunk, slice);
      sums[i].add(x, weights[i]);
    });
    chunk = of.after(chunk);
  }
}

}  // namespace tessera::cuda::decode_step
