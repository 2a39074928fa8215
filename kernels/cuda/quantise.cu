// Quantise: y = x / scale in FP8, in one pass that also finds the largest magnitude, by integer maxima: in
// any order they are the same. With `current` a pass before it finds the scale. Dequantise and TransposeFp8
// take the values back, and turn them.
//
// Without a transposed copy a thread takes eight elements at a time. With one it takes 8 x 8, and
// transposes their FP8 values in its registers: every access is of eight elements, and those of a warp
// fill whole sectors of memory.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fp8_values.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = kFp8ValuesOfPack;  // of a thread at a time
constexpr int kBlocksOfMultiprocessor = 8;
// The pass that finds a scale: few blocks, as every warp of the next pass reads what each of them found
constexpr int kAmaxThreads = 1024, kMostAmaxBlocks = 256;
// With a transposed copy: threads and elements along a side of a block
constexpr int kTileThreads = 8, kTile = kTileThreads * kElements;

// Elements on their way into registers, from where packs begin
template <class T>
struct Elements {
  static constexpr int kWidth = kPackWidth<T>;
  uint4 raw[kElements / kWidth];

  __device__ __forceinline__ void load(const T* x) {
#pragma unroll
    for (int p = 0; p < kElements / kWidth; ++p) raw[p] = load_pack(x + p * kWidth);
  }
  __device__ __forceinline__ void unpack_to(float (&values)[kElements]) const {
#pragma unroll
    for (int p = 0; p < kElements / kWidth; ++p) {
      float pack[kWidth];
      unpack<T>(raw[p], pack);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) values[p * kWidth + i] = pack[i];
    }
  }
};

// The first `count` elements, wherever they lie; the other values are left as they are.
template <class T>
__device__ __forceinline__ void load_some(const T* x, int count, float (&values)[kElements]) {
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    if (i < count) values[i] = static_cast<float>(x[i]);
}
__device__ __forceinline__ uint2 load_some_values(const uint8_t* x, int count) {
  uint2 fp8_values{};
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    if (i < count) (i < 4 ? fp8_values.x : fp8_values.y) |= static_cast<uint32_t>(x[i]) << (8 * (i % 4));
  return fp8_values;
}
__device__ __forceinline__ void store_some(uint8_t* y, int count, uint2 fp8_values) {
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    if (i < count) y[i] = static_cast<uint8_t>((i < 4 ? fp8_values.x : fp8_values.y) >> (8 * (i % 4)));
}

// Calls use(first, values, count) with eight elements at a time, of the last ones fewer.
template <int kThreadsOfBlock, class T, class Use>
__device__ __forceinline__ void for_elements(const T* x, int64_t count, Use&& use) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreadsOfBlock * kElements;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreadsOfBlock + threadIdx.x) * kElements;
       first < count; first += stride) {
    float values[kElements] = {};
    const int present = static_cast<int>(min(static_cast<int64_t>(kElements), count - first));
    if (present == kElements) {
      Elements<T> all;
      all.load(x + first), all.unpack_to(values);
    } else {
      load_some(x + first, present, values);
    }
    use(first, values, present);
  }
}

// amax[block] = the largest magnitude of its elements
template <class T>
__global__ __launch_bounds__(kAmaxThreads) void amax_kernel(const T* x, int64_t count, uint32_t* amax) {
  uint32_t largest = 0;
  for_elements<kAmaxThreads>(x, count, [&](int64_t, const float(&values)[kElements], int) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) largest = max(largest, magnitude(values[i]));
  });
  largest = largest_of_block(largest);
  if (threadIdx.x == 0) amax[blockIdx.x] = largest;
}

struct Scale {
  float* scale;
  const uint32_t* current;  // largest magnitudes, from which the scale follows; null: it is in `scale`
  int count;                // of them, at most kMostAmaxBlocks
};

// 1 / scale. Where it is found here, each warp finds it; one thread writes it, and no other reads that.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ float inverse_of(const Scale& s) {
  if (!s.current) return 1.0f / *s.scale;
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kMostAmaxBlocks; i += kWarp)
    if (const int at = i + thread % kWarp; at < s.count) largest = max(largest, s.current[at]);
  largest = __reduce_max_sync(kWholeWarp, largest);
  const float scale = __uint_as_float(fp8_scale(largest, kFormat == __NV_E4M3, 0));
  if (blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && thread == 0) *s.scale = scale;
  return 1.0f / scale;
}

template <class T, __nv_fp8_interpretation_t kFormat>
__global__ __launch_bounds__(kThreads) void quantise_kernel(const T* x, int64_t count, uint8_t* y,
                                                            Scale scale, uint32_t* amax) {
  const float inverse = inverse_of<kFormat>(scale);
  uint32_t largest = 0;
  for_elements<kThreads>(x, count, [&](int64_t first, const float(&values)[kElements], int present) {
    const uint2 fp8_values = fp8_values_of<kFormat>(values, inverse, largest);
    if (!y) return;
    if (present == kElements) {
      *reinterpret_cast<uint2*>(y + first) = fp8_values;
    } else {
      store_some(y + first, present, fp8_values);
    }
  });
  if (amax) note_largest(largest, amax);
}

// Transposes 8 x 8 bytes: byte c of row r becomes byte r of row c.
__device__ __forceinline__ void transpose(uint2 (&fp8_values)[kElements]) {
  // 4 x 4 of them
  const auto quarter = [](const uint32_t(&row)[4], uint32_t(&column)[4]) {
    constexpr uint32_t kEven = 0x00ff00ffu, kLower = 0x0000ffffu;
#pragma unroll
    for (int odd = 0; odd < 2; ++odd) {
      uint32_t pairs[2];  // of rows 0 and 1, and of 2 and 3: their columns 0 and 2, or 1 and 3
#pragma unroll
      for (int p = 0; p < 2; ++p) {
        const uint32_t a = row[2 * p], b = row[2 * p + 1];
        pairs[p] = odd ? (a >> 8 & kEven) | (b & ~kEven) : (a & kEven) | (b << 8 & ~kEven);
      }
      column[odd] = (pairs[0] & kLower) | pairs[1] << 16;
      column[2 + odd] = pairs[0] >> 16 | (pairs[1] & ~kLower);
    }
  };
  uint32_t rows[2][2][4], columns[2][2][4];  // [half of the rows][half of the columns]
#pragma unroll
  for (int i = 0; i < kElements; ++i)
    rows[i / 4][0][i % 4] = fp8_values[i].x, rows[i / 4][1][i % 4] = fp8_values[i].y;
#pragma unroll
  for (int q = 0; q < 4; ++q) quarter(rows[q / 2][q % 2], columns[q / 2][q % 2]);
#pragma unroll
  for (int i = 0; i < kElements; ++i) fp8_values[i] = {columns[0][i / 4][i % 4], columns[1][i / 4][i % 4]};
}

// The first element of matrix blockIdx.z
__device__ __forceinline__ int64_t matrix_begins(int64_t rows, int64_t columns) {
  return static_cast<int64_t>(blockIdx.z) * rows * columns;
}

// A block takes kTile x kTile elements; a warp stores 64 bytes of a row, and 32 of a transposed one. kPacks:
// rows and columns are multiples of 8, so that a thread has all of its elements, or none. y may be null.
template <class T, __nv_fp8_interpretation_t kFormat, bool kPacks>
__global__ __launch_bounds__(kTileThreads* kTileThreads) void quantise_both_kernel(
    const T* x, int64_t rows, int64_t columns, uint8_t* y, uint8_t* transposed, Scale scale, uint32_t* amax) {
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile + threadIdx.y * kElements,
                column = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x * kElements;
  const bool present = row < rows && column < columns;
  const int rows_left = static_cast<int>(min(int64_t{kElements}, rows - row)),
            columns_left = static_cast<int>(min(int64_t{kElements}, columns - column));
  const int64_t before = matrix_begins(rows, columns);
  x += before + row * columns + column, transposed += before + column * rows + row;
  if (y) y += before + row * columns + column;
  Elements<T> packs[kElements];
  if (kPacks && present) {
#pragma unroll
    for (int r = 0; r < kElements; ++r) packs[r].load(x + r * columns);
  }
  const float inverse = inverse_of<kFormat>(scale);  // while they arrive; with all threads of a warp
  uint32_t largest = 0;
  if (present) {
    uint2 fp8_values[kElements];
    const auto store = [&](uint8_t* to, int64_t stride, int count, int width) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        if constexpr (kPacks) {
          *reinterpret_cast<uint2*>(to + i * stride) = fp8_values[i];
        } else {
          if (i < count) store_some(to + i * stride, width, fp8_values[i]);
        }
      }
    };
#pragma unroll
    for (int r = 0; r < kElements; ++r) {
      float values[kElements] = {};
      if constexpr (kPacks) {
        packs[r].unpack_to(values);
      } else {
        if (r < rows_left) load_some(x + r * columns, columns_left, values);
      }
      fp8_values[r] = fp8_values_of<kFormat>(values, inverse, largest);
    }
    if (y) store(y, columns, rows_left, columns_left);
    transpose(fp8_values);
    store(transposed, rows, columns_left, rows_left);
  }
  if (amax) note_largest(largest, amax);
}

// y = scale x, eight elements of a thread at a time
template <class T>
__global__ __launch_bounds__(kThreads) void dequantise_kernel(const uint8_t* x, int64_t count,
                                                              const float* scale, T* y) {
  const float by = *scale;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kElements;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements; first < count;
       first += stride) {
    const int present = static_cast<int>(min(static_cast<int64_t>(kElements), count - first));
    const uint2 fp8_values = present == kElements ? *reinterpret_cast<const uint2*>(x + first)
                                                  : load_some_values(x + first, present);
    float values[kElements];
#pragma unroll
    for (int i = 0; i < kElements; i += 2) {
      const auto pair =
          static_cast<__nv_fp8x2_storage_t>((i < 4 ? fp8_values.x : fp8_values.y) >> (8 * (i % 4)));
      const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
      values[i] = by * both.x, values[i + 1] = by * both.y;
    }
    if (present == kElements) {
      constexpr int kWidth = kPackWidth<T>;
#pragma unroll
      for (int p = 0; p < kElements; p += kWidth) {
        float part[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i) part[i] = values[p + i];
        store_pack(y + first + p, pack<T>(part));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kElements; ++i)
        if (i < present) y[first + i] = static_cast<T>(values[i]);
    }
  }
}

// y = x^T, in the tiles of quantise_both_kernel
template <bool kPacks>
__global__ __launch_bounds__(kTileThreads* kTileThreads) void transpose_kernel(const uint8_t* x, int64_t rows,
                                                                               int64_t columns, uint8_t* y) {
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kTile + threadIdx.y * kElements,
                column = static_cast<int64_t>(blockIdx.x) * kTile + threadIdx.x * kElements;
  if (row >= rows || column >= columns) return;
  const int rows_left = static_cast<int>(min(int64_t{kElements}, rows - row)),
            columns_left = static_cast<int>(min(int64_t{kElements}, columns - column));
  const int64_t before = matrix_begins(rows, columns);
  x += before + row * columns + column, y += before + column * rows + row;
  uint2 fp8_values[kElements] = {};
#pragma unroll
  for (int r = 0; r < kElements; ++r) {
    if constexpr (kPacks) {
      fp8_values[r] = *reinterpret_cast<const uint2*>(x + r * columns);
    } else {
      if (r < rows_left) fp8_values[r] = load_some_values(x + r * columns, columns_left);
    }
  }
  transpose(fp8_values);
#pragma unroll
  for (int c = 0; c < kElements; ++c) {
    if constexpr (kPacks) {
      *reinterpret_cast<uint2*>(y + c * rows) = fp8_values[c];
    } else {
      if (c < columns_left) store_some(y + c * rows, rows_left, fp8_values[c]);
    }
  }
}

// A thread for each scale; the first `e4m3` of `count` are of that format.
__global__ void update_scales_kernel(const uint32_t* amax, int64_t ranks, int64_t count, int64_t e4m3,
                                     bool current, float* scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t largest = 0;
  for (int64_t r = 0; r < ranks; ++r) largest = max(largest, amax[r * count + i] & 0x7fffffffu);
  if (has_fp8_scale(largest) || current)
    scale[i * kFp8ScaleStride] =
        __uint_as_float(fp8_scale(largest, i < e4m3, current ? 0 : fp8_headroom(i < e4m3)));
}

// The grid of the tiles of matrices
dim3 tiles_of(const char* op, const Tensor& x) {
  const int64_t tiles = cuda::divide_up(x.shape[-2], kTile),
                matrices = x.numel() / (x.shape[-2] * x.shape[-1]);
  check(tiles <= 65535 && matrices <= 65535,
        "{}: x must have at most {} rows and {} matrices to be transposed, found {}", op, 65535 * kTile, 65535,
        x.to_string());
  return {static_cast<unsigned>(cuda::divide_up(x.shape[-1], kTile)), static_cast<unsigned>(tiles),
          static_cast<unsigned>(matrices)};
}

}  // namespace

void CudaBackend::run_op(const Quantise& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x}, {"y", a.y.data}, {"transposed", a.transposed}});
  const int64_t N = a.x.shape[-2], C = a.x.shape[-1], count = a.x.numel();
  auto* amax = reinterpret_cast<uint32_t*>(a.amax.data);
  auto* y = a.y.data.as<uint8_t>();
  Scale scale{.scale = a.y.scale.as<float>(), .current = nullptr, .count = 0};
  with_real_type(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>();
    if (a.current) {
      const int64_t blocks =
          std::min(cuda::divide_up(count, kAmaxThreads * kElements), int64_t{kMostAmaxBlocks});
      auto* largest =
          reinterpret_cast<uint32_t*>(on.scratch(a.kName, blocks * static_cast<int64_t>(sizeof(uint32_t))));
      amax_kernel<T><<<static_cast<unsigned>(blocks), kAmaxThreads, 0, on.stream>>>(x, count, largest);
      TESSERA_CUDA_LAUNCHED();
      scale.current = largest, scale.count = static_cast<int>(blocks);
    }
    const auto run = [&]<__nv_fp8_interpretation_t kFormat>() {
      if (!a.transposed) {
        const int64_t enough = cuda::divide_up(count, kThreads * kElements),
                      most = static_cast<int64_t>(multiprocessors_) * kBlocksOfMultiprocessor;
        const auto blocks = static_cast<unsigned>(std::min(enough, most));
        quantise_kernel<T, kFormat><<<blocks, kThreads, 0, on.stream>>>(x, count, y, scale, amax);
        return;
      }
      const dim3 grid = tiles_of(a.kName, a.x), block(kTileThreads, kTileThreads);
      const auto kernel = N % kElements == 0 && C % kElements == 0 ? quantise_both_kernel<T, kFormat, true>
                                                                   : quantise_both_kernel<T, kFormat, false>;
      kernel<<<grid, block, 0, on.stream>>>(x, N, C, y, a.transposed.as<uint8_t>(), scale, amax);
    };
    a.format == DType::kE4M3 ? run.template operator()<__NV_E4M3>() : run.template operator()<__NV_E5M2>();
    TESSERA_CUDA_LAUNCHED();
  });
}

void CudaBackend::run_op(const Dequantise& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x.data}, {"y", a.y}});
  const int64_t count = a.y.numel(), enough = cuda::divide_up(count, kThreads * kElements),
                most = static_cast<int64_t>(multiprocessors_) * kBlocksOfMultiprocessor;
  with_real_type(a.y.dtype, [&]<class T>() {
    dequantise_kernel<T><<<static_cast<unsigned>(std::min(enough, most)), kThreads, 0, on.stream>>>(
        a.x.data.as<uint8_t>(), count, a.x.scale.as<float>(), a.y.as<T>());
    TESSERA_CUDA_LAUNCHED();
  });
}

void CudaBackend::run_op(const TransposeFp8& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x}, {"y", a.y}});
  const int64_t N = a.x.shape[-2], C = a.x.shape[-1];
  const auto kernel =
      N % kElements == 0 && C % kElements == 0 ? transpose_kernel<true> : transpose_kernel<false>;
  kernel<<<tiles_of(a.kName, a.x), dim3(kTileThreads, kTileThreads), 0, on.stream>>>(a.x.as<uint8_t>(), N, C,
                                                                                     a.y.as<uint8_t>());
  TESSERA_CUDA_LAUNCHED();
}

void CudaBackend::run_op(const UpdateScales& a, const Launch& on) {
  const int64_t R = a.amax.shape[0], S = a.scale.shape[1], count = a.scale.shape[0] * S;
  update_scales_kernel<<<static_cast<unsigned>(cuda::divide_up(count, kThreads)), kThreads, 0, on.stream>>>(
      a.amax.as<uint32_t>(), R, count, S, a.current, a.scale.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
