// The epilogues of a GEMM: what happens to the sums of a tile before they are rounded, and their way out.
#pragma once

#include <cuda_fp8.h>

#include "kernels/gemm/sm90/activations.cuh"
#include "kernels/gemm/sm90/arguments.cuh"

namespace tessera::gemm {

__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

// What a consumer does with its sums. Sixteen columns are a step: eight sums of a
// thread for each 64 rows, two rows of the columns c, c + 1, c + 8, c + 9.
template <Kind kKind, class Activation, Operands kOperands>
struct Epilogue {
  static constexpr bool kFp8 = kOperands != Operands::kBf16;
  static constexpr bool kReads = kKind == Kind::kAdd || kKind == Kind::kActivationBackward;
  static constexpr int kPanels = kTileColumns / kPanel, kSteps = kPanel / 16;
  using Pairs = uint32_t[kHalves][4];  // of bf16: those of a step

  const Memory& memory;
  const Arguments& args;
  int me, thread;      // which consumer, and the thread of it
  uint32_t turns = 0;  // parity of each buffer's operands, a bit each

  __device__ __forceinline__ void barrier() const { ptx::barrier_sync(kConsumerBarrier + me, kWarpgroup); }

  // By one thread: loads the operand's panel, once TMA has read what was in the buffer
  __device__ __forceinline__ void load_operand(TilePlace tile, int panel) const {
    const int which = panel % kBuffers;
    const uint32_t full = memory.operand_barrier(me, which);
    ptx::mbarrier_arrive_expect(full, kBufferBytes);
    ptx::load_box(memory.buffer(me, which).base, args.e, full, tile.column + panel * kPanel, tile.row);
  }

  // Before the main loop: the accumulators begin with the biases
  __device__ __forceinline__ void begin(TilePlace tile, Sums& d) const {
    if constexpr (kReads) {
      if (thread == 0) {
        ptx::bulk_wait_read<0>();
#pragma unroll
        for (int panel = 0; panel < kBuffers; ++panel) load_operand(tile, panel);
      }
    }
    begin_with(args.bias, tile.column, d);
  }
  __device__ __forceinline__ void begin_with(const uint32_t* biases, int first, Sums& d) const {
    [[maybe_unused]] const float inverse = kFp8 ? 1 / scale() : 1;  // of a power of two
    uint32_t bias[kTileColumns / 8];
#pragma unroll
    for (int i = 0; i < kTileColumns / 8; ++i) {
      const int column = first + 8 * i + thread % 4 * 2;
      bias[i] = biases != nullptr && column < args.n ? biases[column / 2] : 0;
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < kTileColumns / 8; ++i) {
        float2 pair = unpack_bf16(bias[i]);
        if constexpr (kFp8) pair.x *= inverse, pair.y *= inverse;
        d[half][4 * i] = d[half][4 * i + 2] = pair.x, d[half][4 * i + 1] = d[half][4 * i + 3] = pair.y;
      }
  }

  // The scale of products of FP8 values
  __device__ __forceinline__ float scale() const { return *args.fp8.a_scale * *args.fp8.b_scale; }

  // Writes the panel that lies in `from` in FP8, once all threads have written it: 8 values from 16 bytes,
  // 64 bytes a row. The inverse of the scale is multiplied in bf16: it is a power of two, so that only
  // what becomes 0 in FP8 could lose bits.
  __device__ __forceinline__ void write_fp8(Tile<kTileRows, kPanel> from, TilePlace tile, int panel) const {
    constexpr int kOfRow = kPanel / 8, kRows = kWarpgroup / kOfRow, kAtOnce = 4;
    constexpr auto kFormat = kOperands == Operands::kE5m2 ? __NV_E5M2 : __NV_E4M3;
    uint32_t place = thread;
    ptx::opaque(place);  // else addresses are computed far ahead, and fill the registers
    const int first = place / kOfRow, chunk = place % kOfRow,
              column = tile.column + panel * kPanel + chunk * 8;
    const int rows = column < args.n ? args.m - tile.row - first : 0;
    uint8_t* to = args.fp8.d + static_cast<int64_t>(tile.row + first) * args.n + column;
    const __nv_bfloat162 inverse = __float2bfloat162_rn(1 / *args.fp8.scale);
    uint32_t largest = 0;  // magnitudes in both halves
#pragma unroll kAtOnce
    for (int row = 0; row < kTileRows; row += kRows, to += int64_t{kRows} * args.n) {
      if (row >= rows) break;
      const uint4 raw = ptx::load_shared_uint4(from.chunk_at(row + first, chunk));
      const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
      uint32_t bytes[2] = {};
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        largest = __vmaxu2(largest, words[w] & 0x7fff7fff);
        const float2 pair =
            __bfloat1622float2(__hmul2(reinterpret_cast<const __nv_bfloat162&>(words[w]), inverse));
        bytes[w / 2] |= uint32_t{__nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, kFormat)} << w % 2 * 16;
      }
      *reinterpret_cast<uint2*>(to) = {bytes[0], bytes[1]};
    }
    largest = __reduce_max_sync(0xffffffff, max(largest << 16, largest & 0xffff0000));
    if (thread % 32 == 0) atomicMax(Memory::largest(me), largest);
  }
  // After the last tile
  __device__ __forceinline__ void end() const {
    if constexpr (kFp8) {
      barrier();  // all warps have compared theirs
      if (thread == 0 && args.fp8.d != nullptr) atomicMax(args.fp8.amax, *Memory::largest(me));
    }
  }

  // Where a thread gives the address of its row of a step's 16 x 16 elements
  __device__ __forceinline__ uint32_t at(Tile<kTileRows, kPanel> buffer, int half, int step) const {
    return buffer.chunk_at(64 * half + thread / 32 * 16 + thread % 16, 2 * step + thread % 32 / 16);
  }
  __device__ __forceinline__ void read(Tile<kTileRows, kPanel> buffer, int step, Pairs& pairs) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) ptx::ldmatrix_x4(pairs[half], at(buffer, half, step));
  }
  __device__ __forceinline__ void write(Tile<kTileRows, kPanel> buffer, int step, const Pairs& pairs) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
      ptx::stmatrix_x4(at(buffer, half, step), pairs[half][0], pairs[half][1], pairs[half][2],
                       pairs[half][3]);
  }

  // The buffer `from` is whole when all threads have come: it goes to columns of `map`. Buffers of earlier
  // stores are then free, but for the last kBusy.
  template <int kBusy>
  __device__ __forceinline__ void store(const CUtensorMap& map, Tile<kTileRows, kPanel> from, TilePlace tile,
                                        int panel) const {
    ptx::fence_shared_for_async();
    if (thread == 0) ptx::bulk_wait_read<kBusy>();
    barrier();
    if (thread == 0) {
      ptx::store_box(map, from.base, tile.column + panel * kPanel, tile.row);
      ptx::bulk_commit();
    }
  }

  // Lanes whose numbers differ in bit 4 kWidth halve what they hold, and add what the other sends.
  template <int kWidth>
  __device__ __forceinline__ void halve(float (&totals)[8]) const {
    const bool upper = thread & 4 * kWidth;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float mine = upper ? totals[kWidth + i] : totals[i],
                  theirs = upper ? totals[i] : totals[kWidth + i];
      totals[i] = mine + __shfl_xor_sync(0xffffffff, theirs, 4 * kWidth);
    }
  }
  // Sums of the columns of two steps over the 8 lanes that have them. A lane ends with the sum of totals[i],
  // i = 4 b4 + 2 b3 + b2 with the bits of its number.
  __device__ __forceinline__ void add_lanes(float (&totals)[8], int step) const {
    halve<4>(totals), halve<2>(totals), halve<1>(totals);
    const int column = 16 * (step + thread / 16 % 2) + thread / 8 % 2 * 8 + thread % 4 * 2 + thread / 4 % 2;
    ptx::store_shared(memory.scratch(me) + (thread / 32 * kPanel + column) * 4, totals[0]);
  }
  // After a barrier: the sums of the four warps
  __device__ __forceinline__ void add_warps(TilePlace tile, int panel) const {
    const int column = tile.column + panel * kPanel + thread;
    if (thread >= kPanel || column >= args.n || tile.row >= args.m) return;
    float sum = 0;
#pragma unroll
    for (int warp = 0; warp < 4; ++warp)
      sum += ptx::load_shared_float(memory.scratch(me) + (warp * kPanel + thread) * 4);
    args.partials[static_cast<int64_t>(tile.row / kTileRows) * args.n + column] = sum;
  }

  // d, one panel after another, a buffer each
  __device__ __forceinline__ void plain(Sums& d, TilePlace tile) const {
    if (thread == 0) ptx::bulk_wait_read<0>();
    barrier();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const auto to = memory.buffer(me, panel % kBuffers);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) write_sums(d, to, panel, step);
      store<0>(args.d, to, tile, panel);
    }
  }
  __device__ __forceinline__ void write_sums(const Sums& d, Tile<kTileRows, kPanel> to, int panel,
                                             int step) const {
    Pairs out;
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* sums = &d[half][32 * panel + 8 * step + 2 * i];
        out[half][i] = ptx::pack_bf16(sums[0], sums[1]);
      }
    write(to, step, out);
  }

  // The row of the tile that has the thread's sums of a half whose number is i
  __device__ __forceinline__ int row_of(int half, int i) const {
    return 64 * half + thread / 32 * 16 + i / 2 % 2 * 8 + thread % 32 / 4;
  }
  // exp(d - reference), and its sums over the tile's columns
  __device__ __forceinline__ void exponentials(Sums& d, TilePlace tile) const {
    const Exponentials& e = args.exponentials;
    float totals[kHalves][2] = {};
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float reference[2];
      int left_out[2];  // relative to the thread's first column
      const int first = tile.column + thread % 4 * 2, end = static_cast<int>(e.end) - first;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = tile.row + row_of(half, 2 * j);
        reference[j] = row < args.m ? e.references[row] * kLog2OfE : 0;
        left_out[j] = row < args.m ? e.left_out[row] - first : -1;
      }
      const auto in_tile = [&](int column) { return column >= 0 && column < kTileColumns; };
      if (__any_sync(0xffffffff, end < kTileColumns || in_tile(left_out[0]) || in_tile(left_out[1]))) {
#pragma unroll
        for (int i = 0; i < kTileColumns / 2; ++i) {
          const int column = i / 4 * 8 + i % 2;
          if (column >= end || column == left_out[i / 2 % 2]) d[half][i] = -INFINITY;
        }
      }
#pragma unroll
      for (int i = 0; i < kTileColumns / 2; ++i) {
        const float x = fmaf(d[half][i], kLog2OfE, -reference[i / 2 % 2]);
        d[half][i] = ptx::exp2(x > kMostExponent * kLog2OfE ? kMostExponent * kLog2OfE : x);  // NaN stays NaN
        totals[half][i / 2 % 2] += d[half][i];
      }
    }
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float total = totals[half][j];
        total += __shfl_xor_sync(0xffffffff, total, 1);
        total += __shfl_xor_sync(0xffffffff, total, 2);
        const int row = tile.row + row_of(half, 2 * j);
        if (thread % 4 == 0 && row < args.m)
          args.partials[static_cast<int64_t>(tile.column / kTileColumns) * args.m + row] = total;
      }
  }

  // No instruction: nothing that is computed of later panels is computed before.
  __device__ __forceinline__ static void hold_behind(Sums& d, int panel) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int later = panel + 1; later < kPanels; ++later)
        ptx::hold(reinterpret_cast<float(&)[32]>(d[half][32 * later]));
  }

  // For each panel the sums, then their activations, a buffer each
  __device__ __forceinline__ void activate(Sums& d, TilePlace tile) const {
    const auto first = memory.buffer(me, 0), second = memory.buffer(me, 1);
    if (thread == 0) ptx::bulk_wait_read<0>();
    barrier();
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) write_sums(d, first, panel, step);
      store<0>(args.e, first, tile, panel);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            float& sum = d[half][32 * panel + 8 * step + i];
            sum = Activation::value(sum);
          }
        write_sums(d, second, panel, step);
      }
      store<0>(args.d, second, tile, panel);
      if constexpr (kFp8) {  // `second` is written again behind the barrier of the next panel
        if (args.fp8.d != nullptr) write_fp8(second, tile, panel);
        hold_behind(d, panel);  // else the next panel begins too early, and registers do not suffice
      }
    }
  }

  // An operand's panel comes to a buffer; the result takes its place there.
  __device__ __forceinline__ void combine(Sums& d, TilePlace tile) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      const int which = panel % kBuffers;
      const auto buffer = memory.buffer(me, which);
      ptx::mbarrier_wait(memory.operand_barrier(me, which), turns >> which & 1);
      turns ^= 1u << which;
      float totals[8] = {};  // of two steps
      Pairs operand;
      read(buffer, 0, operand);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        Pairs next;
        if (kFp8 && step > 0) read(buffer, step, operand);  // no registers are left to read ahead
        if (!kFp8 && step + 1 < kSteps) read(buffer, step + 1, next);
        combine_step(d, operand, panel, step, totals);
        write_sums(d, buffer, panel, step);
        if (kKind == Kind::kActivationBackward && step % 2 == 1 && args.partials != nullptr) {
          add_lanes(totals, step - 1);
#pragma unroll
          for (float& total : totals) total = 0;
        }
        if (step == 1 && panel >= 1 && panel + 1 < kPanels && thread == 0) {
          ptx::bulk_wait_read<0>();  // of the panel before, whose buffer it was
          load_operand(tile, panel + 1);
        }
#pragma unroll
        for (int half = 0; half < kHalves; ++half)
#pragma unroll
          for (int i = 0; !kFp8 && i < 4; ++i) operand[half][i] = next[half][i];
      }
      store<1>(args.d, buffer, tile, panel);
      if constexpr (kFp8) {
        if (args.fp8.d != nullptr) {
          write_fp8(buffer, tile, panel);
          barrier();  // an operand may come to where they were read
        }
      }
      if (kKind == Kind::kActivationBackward && args.partials != nullptr) {
        add_warps(tile, panel);
        barrier();  // their sums have been read
      }
    }
  }
  __device__ __forceinline__ void combine_step(Sums& d, const Pairs& operand, int panel, int step,
                                               float (&totals)[8]) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* sums = &d[half][32 * panel + 8 * step + 2 * i];
        const float2 e = unpack_bf16(operand[half][i]);
        if constexpr (kKind == Kind::kAdd) {
          sums[0] += e.x, sums[1] += e.y;
        } else {
          sums[0] *= Activation::derivative(e.x), sums[1] *= Activation::derivative(e.y);
          totals[step % 2 * 4 + i / 2 * 2] += sums[0], totals[step % 2 * 4 + i / 2 * 2 + 1] += sums[1];
        }
      }
  }

  // After the main loop: sums of FP8 values times their scale
  __device__ __forceinline__ void rescale(Sums& d) const {
    if constexpr (kFp8) {
      const float times = scale();
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
#pragma unroll
        for (float& sum : d[half]) sum *= times;
    }
  }

  __device__ __forceinline__ void finish(Sums& d, TilePlace tile) {
    rescale(d);
    if constexpr (kKind == Kind::kPlain) {
      plain(d, tile);
    } else if constexpr (kKind == Kind::kExp) {
      exponentials(d, tile);
      plain(d, tile);
    } else if constexpr (kKind == Kind::kActivate) {
      activate(d, tile);
    } else {
      combine(d, tile);
    }
  }
};

}  // namespace tessera::gemm
