// A linear stage: y = epilogue(norm(x) W^T + bias) + add, of one row x.
//
//   x: words, as they come -> norm -> shared memory
//   for up to kGroup tiles of the block:      8 rows of W
//     each warp: every kWarps-th step of 32 columns: products m16n8k16, x as row 0 of A
//   the sums of the warps, in their order; bias, activation, add: a lane an output
#pragma once

#include "kernels/cuda/chain/ring.cuh"
#include "kernels/cuda/epilogue.cuh"

namespace tessera::cuda::chain {

// A word is an element as the upper half of a float, and below it the stamp of the stage that wrote it.
__device__ __forceinline__ float value_of(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }
__device__ __forceinline__ uint32_t word_of(float value, uint32_t stamp) {
  return ptx::pack_bf16(0, value) | stamp;
}
__device__ __forceinline__ bool has_come(uint32_t word, uint32_t stamp) { return (word & 0xffff) == stamp; }
__device__ __forceinline__ bool has_come(const uint4& w, uint32_t stamp) {
  return (((w.x ^ stamp) | (w.y ^ stamp) | (w.z ^ stamp) | (w.w ^ stamp)) & 0xffff) == 0;
}
__device__ __forceinline__ uint2 elements_of(const uint4& w) {  // four bf16
  return {ptx::permute_bytes(w.x, w.y, 0x7632), ptx::permute_bytes(w.z, w.w, 0x7632)};
}

// Until the words, which were loaded from there once already, have come
__device__ __forceinline__ void wait_for(uint32_t& word, const uint32_t* from, uint32_t stamp) {
  for (Patience patience; !has_come(word, stamp); patience.spend()) word = ptx::load_relaxed(from);
}
__device__ __forceinline__ void wait_for(uint4& raw, const uint32_t* from, uint32_t stamp) {
  for (Patience patience; !has_come(raw, stamp); patience.spend()) raw = ptx::load_relaxed_uint4(from);
}

// Until the first word of a warp's share has come: what spins is one lane, not all that will be read
__device__ __forceinline__ void wait_for_first(const uint32_t* from, uint32_t stamp) {
  if (threadIdx.x % kWarp == 0) {
    uint32_t word = ptx::load_relaxed(from);
    wait_for(word, from, stamp);
  }
  __syncwarp();
}

// x to shared memory
__device__ __forceinline__ void take_plain(const Block& b, const Stage& s, bf16* x) {
  constexpr int kAtOnce = 4;
  const uint32_t stamp = b.stamp(s.x_from);
  const uint32_t* from = b.a.words + s.x;
  if (4 * (threadIdx.x / kWarp * kWarp) < s.C) wait_for_first(from + 4 * threadIdx.x, stamp);
  for (int first = threadIdx.x; first < s.C / 4; first += kAtOnce * kComputeThreads) {
    uint4 raw[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kComputeThreads;
      if (at < s.C / 4) raw[i] = ptx::load_relaxed_uint4(from + 4 * at);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = first + i * kComputeThreads;
      if (at >= s.C / 4) break;
      wait_for(raw[i], from + 4 * at, stamp);
      reinterpret_cast<uint2*>(x)[at] = elements_of(raw[i]);
    }
  }
}

// norm(x) to shared memory. The variance is that of differences from the first element: see
// skinny_linear.cu.
__device__ __forceinline__ void take_normed(const Block& b, const Stage& s, bf16* x, Reader& reader) {
  constexpr int kPacks = kMostNormed / 4 / kComputeThreads;
  const uint32_t stamp = b.stamp(s.x_from);
  const uint32_t* from = b.a.words + s.x;
  const bool is_layer_norm = s.norm == StageNorm::kLayerNorm;
  const uint32_t weights = reader.wait(b);
  const auto at = [&](int i) { return static_cast<int>(threadIdx.x) + i * kComputeThreads; };
  const auto exists = [&](int i) { return at(i) < s.C / 4; };
  if (4 * (threadIdx.x / kWarp * kWarp) < s.C) wait_for_first(from + 4 * threadIdx.x, stamp);
  uint4 raw[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i)
    if (exists(i)) raw[i] = ptx::load_relaxed_uint4(from + 4 * at(i));
  uint32_t first = is_layer_norm ? ptx::load_relaxed(from) : stamp;  // 0, and it has come
  wait_for(first, from, stamp);
  const float shift = value_of(first);
  float2 sums = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (!exists(i)) break;
    wait_for(raw[i], from + 4 * at(i), stamp);
    const uint32_t words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float d = value_of(words[j]) - shift;
      sums.x += d, sums.y += d * d;
    }
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    sums.x += __shfl_xor_sync(kWholeWarp, sums.x, offset);
    sums.y += __shfl_xor_sync(kWholeWarp, sums.y, offset);
  }
  if (threadIdx.x % kWarp == 0) b.shared.stats[threadIdx.x / kWarp] = sums;
  compute_sync();  // the sums of all warps are there
  sums = {};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sums.x += b.shared.stats[w].x, sums.y += b.shared.stats[w].y;
  const float inverse_of_C = 1.0f / static_cast<float>(s.C);
  float variance = sums.y * inverse_of_C, mean = 0;
  if (is_layer_norm) {
    const float difference = sums.x * inverse_of_C;
    mean = shift + difference;
    variance = fmaxf(variance - difference * difference, 0.0f);
  }
  const float rstd = rsqrtf(variance + s.epsilon);
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (!exists(i)) break;
    const uint2 weight = ptx::load_shared_uint2(weights + 8 * at(i));
    const uint2 bias = is_layer_norm ? ptx::load_shared_uint2(weights + 2 * s.C + 8 * at(i)) : uint2{};
    const auto low = [](uint32_t pair) { return __uint_as_float(pair << 16); };
    const auto high = [](uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); };
    const auto normed = [&](uint32_t word, float w, float add) {
      return (value_of(word) - mean) * rstd * w + add;
    };
    reinterpret_cast<uint2*>(x)[at(i)] = {ptx::pack_bf16(normed(raw[i].x, low(weight.x), low(bias.x)),
                                                         normed(raw[i].y, high(weight.x), high(bias.x))),
                                          ptx::pack_bf16(normed(raw[i].z, low(weight.y), low(bias.y)),
                                                         normed(raw[i].w, high(weight.y), high(bias.y)))};
  }
  reader.give_back(b);
}

// This warp's part of the products of a tile with x, which stays in the tensor cores until it is read: so the
// next tile begins before this one has ended.
struct TileSums {
  float chains[2][4];  // elements 0 and 1 of lanes 0 to 3 are the outputs

  __device__ __forceinline__ void multiply(const Block& b, const Stage& s, int tile, uint32_t x,
                                           Reader& reader) {
    constexpr int kSteps = kChunk / 32 / kWarps;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = lane / 4, part = lane % 4;
    const bool has_row = TileRows(s, tile).has(row);
    for (int c = 0; c < s.C; c += kChunk) {
      const int elements = min(kChunk, s.C - c);
      const uint32_t from = reader.wait(b) + row * pitch_of(elements);
      uint4 of_w[kSteps] = {}, of_x[kSteps] = {};
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        const int column = (warp + i * kWarps) * 32 + part * 8;
        if (column < elements && has_row) of_w[i] = ptx::load_shared_uint4(from + 2 * column);
        if (column < elements && row == 0) of_x[i] = ptx::load_shared_uint4(x + 2 * (c + column));
      }
      reader.give_back(b);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        ptx::mma_m16n8k16(chains[0], {of_x[i].x, 0, of_x[i].y, 0}, of_w[i].x, of_w[i].y);
        ptx::mma_m16n8k16(chains[1], {of_x[i].z, 0, of_x[i].w, 0}, of_w[i].z, of_w[i].w);
      }
    }
  }
};

// An output that a lane finishes, and what its epilogue reads, which is asked for ahead of the products
struct Output {
  bool mine = false;
  int at = 0;
  float bias = 0, up_bias = 0;
  uint32_t add = 0;

  __device__ __forceinline__ Output(const Block& b, const Stage& s, int first_tile) {
    const int lane = threadIdx.x % kWarp, tile = first_tile + lane / kTileRows * static_cast<int>(gridDim.x),
              row = lane % kTileRows;
    at = tile * s.tile_outputs + row;
    mine = tile < s.tiles && row < s.tile_outputs && at < s.O;
    if (!mine) return;
    const auto* biases = static_cast<const bf16*>(s.bias);
    const bool gated = s.epilogue == FusedLinear::Epilogue::kSwiglu;
    if (biases) bias = static_cast<float>(biases[at]);
    if (biases && gated) up_bias = static_cast<float>(biases[s.O + at]);
    if (s.add != kNoWords) add = ptx::load_relaxed(b.a.words + s.add + at);
  }
  __device__ __forceinline__ void finish(const Block& b, const Stage& s, int index,
                                         const float (&partial)[kGroup][kWarps][kTileRows]) {
    const int lane = threadIdx.x % kWarp;
    float value = bias;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) value += partial[lane / kTileRows][w][lane % kTileRows];
    // With SwiGLU lanes 0 to 3 of a tile have gates, the other four what belongs to them
    const float up = __shfl_down_sync(kWholeWarp, value, 4) + up_bias;
    if (!mine) return;
    float y = apply(s.epilogue, value, up);
    if (s.add != kNoWords) {
      wait_for(add, b.a.words + s.add + at, b.stamp(s.add_from));
      y += value_of(add);
    }
    if (s.plain)
      static_cast<bf16*>(s.plain)[at] = __float2bfloat16_rn(y);
    else
      ptx::store_relaxed(b.a.words + s.y + at, word_of(y, b.stamp(index)));
  }
};

// `turn` counts groups of tiles over all stages.
__device__ __forceinline__ void linear(const Block& b, const Stage& s, int index, Reader& reader, int& turn) {
  const int first = b.first_tile(s), stride = static_cast<int>(gridDim.x);
  if (first >= s.tiles) return;
  auto* x = reinterpret_cast<bf16*>(b.region);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  for (int group = first; group < s.tiles; group += kGroup * stride, ++turn) {
    const bool finishes = turn % kWarps == warp;
    Output output(b, s, finishes ? group : s.tiles);
    if (group == first) {
      s.norm == StageNorm::kNone ? take_plain(b, s, x) : take_normed(b, s, x, reader);
      compute_sync();  // every warp reads all of x
    }
    auto& partial = b.shared.partial[turn % 2];
    TileSums sums[kGroup] = {};
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (group + i * stride < s.tiles) sums[i].multiply(b, s, group + i * stride, Block::address(x), reader);
#pragma unroll
    for (int i = 0; i < kGroup; ++i)
      if (lane < kTileRows / 2)
        *reinterpret_cast<float2*>(&partial[i][warp][2 * lane]) = {
            sums[i].chains[0][0] + sums[i].chains[1][0], sums[i].chains[0][1] + sums[i].chains[1][1]};
    compute_sync();  // an output is the sum of all warps; the sums of the turn before last have been read
    if (finishes) output.finish(b, s, index, partial);
  }
}

// y = row of the table of tokens + row of the table of places
__device__ __forceinline__ void embed(const Block& b, const Stage& s, int index) {
  const int at = b.first_tile(s) * kComputeThreads + static_cast<int>(threadIdx.x);
  if (at >= s.O) return;
  const auto *tokens = static_cast<const bf16*>(s.weight), *places = static_cast<const bf16*>(s.bias);
  float value = static_cast<float>(tokens[int64_t{*b.a.tokens} * s.O + at]);
  if (places) value += static_cast<float>(places[int64_t{b.start} * s.O + at]);
  ptx::store_relaxed(b.a.words + s.y + at, word_of(value, b.stamp(index)));
}

}  // namespace tessera::cuda::chain
