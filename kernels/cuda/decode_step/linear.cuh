// A linear instruction: y = epilogue(norm(x) W^T + bias) + add, of one row x.
//
//   W comes in entries of the ring: 8 rows of up to kChunk columns, of which each warp has a slice. What a
//   warp needs of x are the same columns, and it waits for these alone: no barrier before the mma.
//   each warp: its part of up to kBatch entries of W to registers
//              its columns of x, once they are flagged -> times the norm's weight -> shared memory
//              for each entry: mma m16n8k16, x as a row of A
//   the sums of the warps, in their order; the norm's mean and rstd, bias, activation, add: a lane an output
//
// The norm is off the critical path of the GEMV:
//   LayerNorm   norm(x) W^T = rstd (x g) W^T - rstd mean g W^T + h W^T     g, h: the norm's weight and bias
//   RMSNorm     norm(x) W^T = rstd (x g) W^T
// A has 16 rows and x is one. With a norm x g is two, what bf16 holds of it and what bf16 holds of the rest,
// so that the difference of the first two terms keeps the precision of x; g and h are the next two. mean and
// rstd, from sums of x and of its squares, are known when the mma are done.
#pragma once

#include "kernels/cuda/decode_step/gemv.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace tessera::cuda::decode_step {

// Stores a warp's sums of `count` entries; `sums` is what it has of an incomplete tile, of which there are
// `chunk` chunks.
__device__ __forceinline__ void store_sums(const Accumulators (&of_warp)[kBatch], int chunks, int count,
                                           bool has_row, uint32_t to, uint32_t& tile, int& chunk,
                                           float2& sums) {
  constexpr uint32_t kTile = kTileRows * sizeof(float);
  if (chunks == 1) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i)
      if (has_row && i < count) ptx::store_shared(to + i * kTile, of_warp[i].sums());
    tile += count;
    return;
  }
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {  // the last store of a tile is that of its sum
    const float2 of_entry = of_warp[i].sums();
    sums.x += of_entry.x, sums.y += of_entry.y;
    if (has_row && i < count) ptx::store_shared(to + tile % kGroup * kTile, sums);
    chunk += i < count;
    const bool ends = chunk == chunks;
    sums = {ends ? 0 : sums.x, ends ? 0 : sums.y};
    chunk = ends ? 0 : chunk, tile += ends;
  }
}

// (1 + tanh u) / 2 = 1 / (1 + exp(-2 u)): shorter than tanhf(), and exact enough for bf16
__device__ __forceinline__ float activate(FusedLinear::Epilogue epilogue, float value, float up) {
  if (epilogue == FusedLinear::Epilogue::kGelu) return value * sigmoid(2 * TanhGelu::argument(value));
  return apply(epilogue, value, up);
}

// An output that a lane finishes, and what its epilogue reads, which is asked for ahead of the mma
struct Output {
  bool mine = false;
  int at = 0;
  float bias = 0, up_bias = 0;
  uint32_t add = 0;

  __device__ __forceinline__ void start(const Block& b, const Instruction& s, int first_tile) {
    const int lane = threadIdx.x % kWarp, tile = first_tile + lane / kTileRows * static_cast<int>(gridDim.x),
              row = lane % kTileRows;
    at = tile * s.tile_outputs + row;
    mine = tile < s.tiles && row < s.tile_outputs && at < s.O;
    if (!mine) return;
    const auto* biases = static_cast<const bf16*>(s.bias);
    if (biases) bias = static_cast<float>(biases[at]);
    if (biases && is_gated(s)) up_bias = static_cast<float>(biases[s.O + at]);
    if (s.add != kNowhere) add = ptx::load_relaxed(b.values + s.add + at);
  }
  __device__ __forceinline__ void finish(const Block& b, const Instruction& s, int index, uint32_t partial,
                                         uint32_t stats) {
    const uint32_t lane = threadIdx.x % kWarp, from = partial + lane * sizeof(float);
    float of_warps[kMostRows][kWarps] = {};
    const int count = rows_of(s.norm);
#pragma unroll
    for (int r = 0; r < kMostRows; ++r) {
      if (r >= count) break;
#pragma unroll
      for (int w = 0; w < kWarps; ++w)
        of_warps[r][w] = ptx::load_shared_float(from + (w * kMostRows + r) * kPartialRow);
    }
    float4 of_two[kWarps / 2];  // x and its squares of two warps each
    if (s.norm != InstructionNorm::kNone) {
#pragma unroll
      for (int i = 0; i < kWarps / 2; ++i) of_two[i] = ptx::load_shared_float4(stats + i * sizeof(float4));
    }
    float rows[kMostRows];
#pragma unroll
    for (int r = 0; r < kMostRows; ++r) {
      const auto& w = of_warps[r];
      rows[r] = ((w[0] + w[1]) + (w[2] + w[3])) + ((w[4] + w[5]) + (w[6] + w[7]));
    }
    float value = rows[0];
    if (s.norm != InstructionNorm::kNone) {
      float2 sums = {};
#pragma unroll
      for (const float4& two : of_two) sums.x += two.x + two.z, sums.y += two.y + two.w;
      const float inverse_of_C = 1.0f / static_cast<float>(s.C);
      const float mean = s.norm == InstructionNorm::kLayerNorm ? sums.x * inverse_of_C : 0;
      const float variance = fmaxf(sums.y * inverse_of_C - mean * mean, 0.0f);
      value = rsqrtf(variance + s.epsilon) * (rows[0] + rows[1] - mean * rows[2]) + rows[3];
    }
    value += bias;
    // With SwiGLU lanes 0 to 3 of a tile have gates, the other four what belongs to them
    const float up = __shfl_down_sync(kWholeWarp, value, kTileRows / 2) + up_bias;
    float y = activate(s.epilogue, value, up);
    if (s.add != kNowhere) {
      const uint32_t flag = b.flag(s.add_from);
      spin_until([&] { return !mine || has_flag(add, flag); },
                 [&] {
                   if (mine) add = ptx::load_relaxed(b.values + s.add + at);
                 });
      y += value_of(add);
    }
    if (!mine) return;
    if (s.plain)
      static_cast<bf16*>(s.plain)[at] = __float2bfloat16_rn(y);
    else
      ptx::store_relaxed(b.values + s.y + at, flagged(y, b.flag(index)));
  }
};

// What a warp counts over all instructions: groups of tiles, and the instructions in which its block had some
struct Turns {
  uint32_t groups = 0, instructions = 0;
};

__device__ __forceinline__ void linear(const Block& b, const Instruction& s, int index, Reader& reader,
                                       Turns& turns) {
  const int first = b.first_tile(s), stride = static_cast<int>(gridDim.x);
  if (first >= s.tiles) return;
  const Operands of(b, s);
  const uint32_t x = Block::address(b.region);
  const uint32_t warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int tiles = first + (s.rounds - 1) * stride < s.tiles ? s.rounds : s.rounds - 1;
  const uint32_t stats = b.stats(turns.instructions++);
  NormWeights norm;
  if (s.norm != InstructionNorm::kNone) norm.take(b, s, of, x, reader);
  Output output;
  float2 sums = {};  // of a tile so far
  uint32_t tile = 0;
  for (int chunk = 0, left = tiles * of.chunks; left > 0; left -= kBatch) {
    // A group of tiles begins and ends with a batch of entries
    const bool finishes = turns.groups % kWarps == warp, is_first = tile == 0 && chunk == 0;
    if (finishes && tile % kGroup == 0 && chunk == 0)
      output.start(b, s, first + static_cast<int>(tile) * stride);
    Weights weights[kBatch];
    int next = chunk;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= left) break;
      weights[i].take(b, of, of.slice(next), reader);
      next = of.after(next);
    }
    // The lanes of a row of A have its sums; those of a tile that is not complete are overwritten.
    const uint32_t row = lane / 4;
    uint32_t to =
        b.partial(turns.groups) + (warp * kMostRows + row) * kPartialRow + lane % 4 * sizeof(float2);
    ptx::opaque(to);  // ready when the mma are
    const bool has_row = row < rows_of(s.norm);
    float2 of_warp = {};
    if (is_first) of_warp = take_x(b, s, of, x, norm);
    Accumulators accumulators[kBatch];
    multiply(accumulators, of, chunk, min(left, kBatch), weights);
    store_sums(accumulators, of.chunks, min(left, kBatch), has_row, to, tile, chunk, sums);
    if (is_first && s.norm != InstructionNorm::kNone) {
#pragma unroll
      for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        of_warp.x += __shfl_xor_sync(kWholeWarp, of_warp.x, offset);
        of_warp.y += __shfl_xor_sync(kWholeWarp, of_warp.y, offset);
      }
      if (lane == 0) ptx::store_shared(stats + warp * sizeof(float2), of_warp);
    }
    if (left > kBatch && (chunk != 0 || tile % kGroup != 0)) continue;
    compute_sync();  // an output is the sum of all warps; the sums of the turn before last have been read
    if (finishes) output.finish(b, s, index, b.partial(turns.groups), stats);
    ++turns.groups;
  }
}

// y = row of the table of tokens + row of the table of places
__device__ __forceinline__ void embed(const Block& b, const Instruction& s, int index) {
  const int at = b.first_tile(s) * kComputeThreads + static_cast<int>(threadIdx.x);
  if (at >= s.O) return;
  const auto *tokens = static_cast<const bf16*>(s.weight), *places = static_cast<const bf16*>(s.bias);
  float value = static_cast<float>(tokens[int64_t{*b.a.tokens} * s.O + at]);
  if (places) value += static_cast<float>(places[int64_t{b.start} * s.O + at]);
  ptx::store_relaxed(b.values + s.y + at, flagged(value, b.flag(index)));
}

}  // namespace tessera::cuda::decode_step
