// How a warp takes a tile of codes, k = z + s n and v = z + s n:
//
//   S = N (Q s)^T + Q z,    P = 2^(c S - m),    O^T += N^T (P s)^T,  O_z += P z
//
// Q s is exact in two bf16: q and s have 8 bits each. The codes become bf16 in registers, an integer of 4
// bits as 128 + code: that is a mask and an or. What this adds, 136 times the sum of the other factor, comes
// from one more product, of the same rounded factor.
//
// Where a head has fewer channels than the tile is wide, q is 0 behind them, and the first step's codes stand
// in for those that there are not, without a branch; columns of O behind the head's are not read.
#pragma once

#include "kernels/attention/decode/heads.cuh"
#include "kernels/attention/decode/small.h"

namespace tessera::attention::decode {

// The sizes of a tile's parts in bytes, in the order in which they follow one another. They follow the head
// dim, which may be less than kWidth.
struct SmallShape {
  int steps;
  int group_words, key_scale_bytes, tile_bytes, value_scale_bytes, code_bytes;

  __device__ __forceinline__ int present(int step) const { return step < steps ? step : 0; }

  CodeConstants constants;

  __device__ __forceinline__ SmallShape(const CacheFormat& format, const CodeConstants& of_codes)
      : steps(format.steps()),
        group_words(format.group_words()),
        key_scale_bytes(format.key_scale_words() * 4),
        tile_bytes(format.tile_words() * 4),
        value_scale_bytes(format.value_scale_words() * 4),
        code_bytes(format.code_words() * 4),
        constants(of_codes) {}
};

template <CacheDtype kDtype>
struct Codes {
  static constexpr bool kShifted = kDtype == CacheDtype::kInt4;  // operand() has 136 + n
  static constexpr uint32_t kMinusShift = 0xc308c308;            // -136, twice
  static constexpr int kSubs = CacheFormat{.dtype = kDtype}.subs();

  // The operand A of 16 tokens, from a lane's four words
  static __device__ __forceinline__ void operand(const uint4& words, int sub, const CodeConstants& constants,
                                                 uint32_t (&a)[4]) {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
    if constexpr (kDtype == CacheDtype::kInt4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = (w[sub] >> 4 * i & 0x000f000f) | constants.plus_128;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t word = w[2 * sub + i / 2];
        a[i] = kDtype == CacheDtype::kInt8 ? two_int8(i % 2 == 0 ? word : word >> 8, constants)
                                           : two_e4m3(i % 2 == 0 ? word << 8 : word);
      }
    }
  }

 private:
  // Bytes 0 and 2: the lower 7 bits as 128 + l, then 256 or 128 less
  static __device__ __forceinline__ uint32_t two_int8(uint32_t x, const CodeConstants& constants) {
    const uint32_t low = (x & 0x007f007f) | constants.plus_128, less = (x & 0x00800080) ^ constants.minus_256;
    return ptx::fma_bf16x2(low, 0x3f803f80, less);
  }
  // Bytes 1 and 3: as the bits of bf16 they are 2^-120 of the number
  static __device__ __forceinline__ uint32_t two_e4m3(uint32_t x) {
    const uint32_t small = (x >> 4 & 0x07f007f0) | (x & 0x80008000);
    return ptx::fma_bf16x2(small, 0x7b807b80, 0x80008000);
  }
};

template <class Tile>
struct SmallHeads : MmaHeads<Tile> {
  using Base = MmaHeads<Tile>;
  using Base::kSteps, Base::q, Base::o, Base::offset, Base::sum, Base::score;
  static constexpr CacheDtype kDtype = Tile::kFormat.dtype;
  using C = Codes<kDtype>;
  static constexpr int kSubs = C::kSubs, kParts = Tile::kFormat.parts();
  static constexpr int kStepsOfPart = Tile::kFormat.value_channels() / 16;
  // P s in one bf16 where a code of 4 bits is a sixteenth of the values' spread, else in two
  static constexpr bool kTwoParts = kDtype != CacheDtype::kInt4;

  float shift[kParts][4] = {};  // what codes as 136 + n have added to O, less that; columns as o has them
  float zeros[kParts][2] = {};  // O_z of this lane's keys

  using Base::Base;

  // The tile at `at`, all of whose keys are seen
  template <class Bias = NoBias>
  __device__ __forceinline__ void take_codes(const SmallShape& shape, uint32_t at, const Bias& bias = {}) {
    const int lane = threadIdx.x % 32;
    float s[kSubs][4] = {};
    scores(shape, at, s);
    if constexpr (Bias::kAny) {
#pragma unroll
      for (int i = 0; i < 4 * kSubs; ++i)
        s[i / 4][i % 4] = bias.score(s[i / 4][i % 4], i % 2, i / 4 * 16 + lane / 4 + i % 4 / 2 * 8);
    }
    bool above = false;
#pragma unroll
    for (int i = 0; i < 4 * kSubs; ++i) above |= s[i / 4][i % 4] > offset[i % 2] + kSlack;
    if (__any_sync(kWholeWarp, above)) raise_all(s);
#pragma unroll
    for (int i = 0; i < 4 * kSubs; ++i) {
      float& p = s[i / 4][i % 4];
      p = ptx::exp2(p - finite(offset[i % 2]));
      sum[i % 2] += p;
    }
    const uint32_t scales = at + shape.key_scale_bytes,
                   codes = scales + shape.value_scale_bytes + shape.code_bytes + lane * 16;
#pragma unroll
    for (int part = 0; part < kParts; ++part) add_values(shape, part, scales, codes, s);
  }

  // After the last tile of codes: O has all of it.
  __device__ __forceinline__ void end_codes() {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          zeros[part][c] += __shfl_xor_sync(kWholeWarp, zeros[part][c], step);
        const float all = zeros[part][c] + shift[part][c];
#pragma unroll
        for (int step = part * kStepsOfPart; step < (part + 1) * kStepsOfPart && step < kSteps; ++step)
          o[step][c] += all, o[step][c + 2] += all;
      }
  }

 private:
  static __device__ __forceinline__ uint32_t negative(uint32_t pair) { return pair ^ 0x80008000; }

  // s becomes c S
  __device__ __forceinline__ void scores(const SmallShape& shape, uint32_t at, float (&s)[kSubs][4]) const {
    const int lane = threadIdx.x % 32;
    const uint32_t scales = at + lane % 4 * 16,
                   codes = at + shape.key_scale_bytes + shape.value_scale_bytes + lane * 16;
    constexpr uint32_t kShift[4] = {C::kMinusShift, C::kMinusShift, C::kMinusShift, C::kMinusShift};
    float zero[4] = {}, unshift[4] = {};  // Q z, in every row; and -136 times the sum of Q s
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int present = shape.present(step);
      const uint4 scale = ptx::load_shared_uint4(scales + present * 64);
      const uint32_t of_channels[2] = {scale.x, scale.y}, z[4] = {scale.z, scale.z, scale.w, scale.w};
      uint32_t high[2], low[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        high[i] = ptx::fma_bf16x2(q[step][i], of_channels[i], 0x80008000);
        low[i] = ptx::fma_bf16x2(q[step][i], of_channels[i], negative(high[i]));
      }
      ptx::mma_m16n8k16(zero, z, q[step][0], q[step][1]);
      if constexpr (C::kShifted) {
        ptx::mma_m16n8k16(unshift, kShift, high[0], high[1]);
        ptx::mma_m16n8k16(unshift, kShift, low[0], low[1]);
      }
      const uint4 words = ptx::load_shared_uint4(codes + present * 512);
#pragma unroll
      for (int sub = 0; sub < kSubs; ++sub) {
        uint32_t a[4];
        C::operand(words, sub, shape.constants, a);
        ptx::mma_m16n8k16(s[sub], a, high[0], high[1]);
        ptx::mma_m16n8k16(s[sub], a, low[0], low[1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * kSubs; ++i)
      s[i / 4][i % 4] = score.log2(s[i / 4][i % 4] + unshift[i % 2] + zero[i % 2]);
  }

  // O of part `part`: the channels that share one step and one zero in each token
  __device__ __forceinline__ void add_values(const SmallShape& shape, int part, uint32_t scales,
                                             uint32_t codes, const float (&p)[kSubs][4]) {
    const int lane = threadIdx.x % 32;
    uint32_t high[kSubs][2], low[kSubs][2];
    const int present = shape.present(part * kStepsOfPart) / kStepsOfPart;
#pragma unroll
    for (int word = 0; word < 2 * kSubs; word += 4) {
      const uint4 four = ptx::load_shared_uint4(scales + ((present * 8 + lane / 4) * 2 * kSubs + word) * 4);
      const uint32_t of_tokens[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int sub = (word + i) / 2, half = i % 2;
        const float step = __uint_as_float(of_tokens[i] << 16),
                    zero = __uint_as_float(of_tokens[i] & 0xffff0000);
        const float x = p[sub][2 * half], y = p[sub][2 * half + 1];
        zeros[part][0] = fmaf(x, zero, zeros[part][0]);
        zeros[part][1] = fmaf(y, zero, zeros[part][1]);
        const uint32_t pair = ptx::pack_bf16(x * step, y * step);
        high[sub][half] = ptx::transpose_8x8(pair);
        if constexpr (kTwoParts)
          low[sub][half] =
              ptx::transpose_8x8(ptx::pack_bf16(fmaf(x, step, -__uint_as_float(pair << 16)),
                                                fmaf(y, step, -__uint_as_float(pair & 0xffff0000))));
      }
    }
    if constexpr (C::kShifted) {
      constexpr uint32_t kShift[4] = {C::kMinusShift, C::kMinusShift, C::kMinusShift, C::kMinusShift};
#pragma unroll
      for (int sub = 0; sub < kSubs; ++sub)
        ptx::mma_m16n8k16(shift[part], kShift, high[sub][0], high[sub][1]);
    }
#pragma unroll
    for (int i = 0; i < kStepsOfPart; ++i) {
      const int step = part * kStepsOfPart + i;
      if (step >= kSteps) break;  // known to the compiler
      const uint4 words = ptx::load_shared_uint4(codes + shape.present(step) * 512);
#pragma unroll
      for (int sub = 0; sub < kSubs; ++sub) {
        uint32_t a[4];
        C::operand(words, sub, shape.constants, a);
        ptx::mma_m16n8k16(o[step], a, high[sub][0], high[sub][1]);
        if constexpr (kTwoParts) ptx::mma_m16n8k16(o[step], a, low[sub][0], low[sub][1]);
      }
    }
  }

  __device__ __forceinline__ void raise_all(const float (&s)[kSubs][4]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float raised = offset[c];
#pragma unroll
      for (int i = 0; i < 2 * kSubs; ++i) raised = fmaxf(raised, s[i / 2][i % 2 * 2 + c]);
#pragma unroll
      for (int step = 4; step < 32; step *= 2)
        raised = fmaxf(raised, __shfl_xor_sync(kWholeWarp, raised, step));
      const float factor = ptx::exp2(offset[c] - finite(raised));
      offset[c] = raised;
      sum[c] *= factor;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) o[step][c] *= factor, o[step][c + 2] *= factor;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        shift[part][c] *= factor, shift[part][c + 2] *= factor, zeros[part][c] *= factor;
    }
  }
};

}  // namespace tessera::attention::decode
