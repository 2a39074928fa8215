// Quantise: y = x / scale in FP8, in one pass that also finds the largest magnitude, by integer maxima: in
// any order they are the same. With `current` a pass before it finds the scale.
//
// Without a transposed copy a thread takes eight elements at a time. With one, a block converts a tile of
// 64 x 64, writes it, and from shared memory its transpose.
#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/fp8_scale.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fp8_codes.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kElements = kCodesOfPack;  // of a thread at a time
constexpr int kBlocksOfMultiprocessor = 8;
constexpr int kTile = 64;

// Calls use(first, values, count) with eight elements at a time, of the last ones fewer.
template <class T, class Use>
__device__ __forceinline__ void for_elements(const T* x, int64_t count, Use&& use) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kElements;
  for (int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kElements; first < count;
       first += stride) {
    float values[kElements] = {};
    const int present = static_cast<int>(min(static_cast<int64_t>(kElements), count - first));
    if (present == kElements) {
      constexpr int kWidth = kPackWidth<T>;
#pragma unroll
      for (int p = 0; p < kElements; p += kWidth) {
        float pack[kWidth];
        load_floats(x + first + p, pack);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[p + i] = pack[i];
      }
    } else {
      for (int i = 0; i < present; ++i) values[i] = static_cast<float>(x[first + i]);
    }
    use(first, values, present);
  }
}

template <class T>
__global__ __launch_bounds__(kThreads) void amax_kernel(const T* x, int64_t count, uint32_t* amax) {
  uint32_t largest = 0;
  for_elements(x, count, [&](int64_t, const float(&values)[kElements], int) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) largest = max(largest, magnitude(values[i]));
  });
  note_largest(largest, amax);
}

struct Scale {
  float* scale;
  const uint32_t* current;  // the largest magnitude, from which the scale follows; null: it is in `scale`
};

// 1 / scale. Where it is found here, the first block writes it, and no other reads it.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ float inverse_of(const Scale& s) {
  if (!s.current) return 1.0f / *s.scale;
  const float scale = __uint_as_float(fp8_scale(*s.current, kFormat == __NV_E4M3, 0));
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *s.scale = scale;
  return 1.0f / scale;
}

template <class T, __nv_fp8_interpretation_t kFormat>
__global__ __launch_bounds__(kThreads) void quantise_kernel(const T* x, int64_t count, uint8_t* y,
                                                            Scale scale, uint32_t* amax) {
  const float inverse = inverse_of<kFormat>(scale);
  uint32_t largest = 0;
  for_elements(x, count, [&](int64_t first, const float(&values)[kElements], int present) {
    const uint2 codes = codes_of<kFormat>(values, inverse, largest);
    if (present == kElements) {
      *reinterpret_cast<uint2*>(y + first) = codes;
    } else {
      for (int i = 0; i < present; ++i)
        y[first + i] = static_cast<uint8_t>((i < 4 ? codes.x : codes.y) >> (8 * (i % 4)));
    }
  });
  if (amax) note_largest(largest, amax);
}

template <class T, __nv_fp8_interpretation_t kFormat>
__global__ __launch_bounds__(kThreads) void quantise_both_kernel(const T* x, int64_t rows, int64_t columns,
                                                                 uint8_t* y, uint8_t* transposed, Scale scale,
                                                                 uint32_t* amax) {
  __shared__ uint8_t tile[kTile][kTile + 4];  // a column then lies in different banks
  const float inverse = inverse_of<kFormat>(scale);
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * kTile,
                column0 = static_cast<int64_t>(blockIdx.x) * kTile;
  uint32_t largest = 0;
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int r = i / kTile, c = i % kTile;
    const int64_t row = row0 + r, column = column0 + c;
    if (row >= rows || column >= columns) continue;
    const float value = static_cast<float>(x[row * columns + column]);
    largest = max(largest, magnitude(value));
    const uint8_t code = code_of<kFormat>(value * inverse);
    tile[r][c] = code;
    y[row * columns + column] = code;
  }
  __syncthreads();  // the tile is whole
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int c = i / kTile, r = i % kTile;
    const int64_t row = row0 + r, column = column0 + c;
    if (row < rows && column < columns) transposed[column * rows + row] = tile[r][c];
  }
  if (amax) note_largest(largest, amax);
}

// A thread for each scale
__global__ void update_scales_kernel(const uint32_t* amax, int64_t ranks, int64_t count, float* scale) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= 2 * count) return;
  uint32_t largest = 0;
  for (int64_t r = 0; r < ranks; ++r) largest = max(largest, amax[r * 2 * count + i] & 0x7fffffffu);
  if (has_fp8_scale(largest))
    scale[i * kFp8ScaleStride] = __uint_as_float(fp8_scale(largest, i < count, fp8_headroom(i < count)));
}

}  // namespace

void CudaBackend::run_op(const Quantise& a, const Launch& on) {
  check_aligned(a.kName, {{"x", a.x}, {"y", a.y.data}});
  const int64_t N = a.x.shape[0], C = a.x.shape[1], count = a.x.numel();
  const int64_t wanted = cuda::divide_up(count, kThreads * kElements),
                most = static_cast<int64_t>(multiprocessors_) * kBlocksOfMultiprocessor;
  const auto blocks = static_cast<unsigned>(std::min(wanted, most));
  auto* amax = reinterpret_cast<uint32_t*>(a.amax.data);
  Scale scale{.scale = a.y.scale.as<float>(), .current = nullptr};
  with_real_type(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>();
    if (a.current) {
      auto* largest = reinterpret_cast<uint32_t*>(on.scratch(a.kName, sizeof(uint32_t)));
      TESSERA_CUDA(cudaMemsetAsync(largest, 0, sizeof(uint32_t), on.stream));
      amax_kernel<T><<<blocks, kThreads, 0, on.stream>>>(x, count, largest);
      TESSERA_CUDA_LAUNCHED();
      scale.current = largest;
    }
    const auto run = [&]<__nv_fp8_interpretation_t kFormat>() {
      auto* y = a.y.data.as<uint8_t>();
      if (!a.transposed) {
        quantise_kernel<T, kFormat><<<blocks, kThreads, 0, on.stream>>>(x, count, y, scale, amax);
        return;
      }
      const int64_t tiles = cuda::divide_up(N, kTile);
      check(tiles <= 65535, "{}: x wants at most {} rows with a transposed copy, found {}", a.kName,
            65535 * kTile, a.x.to_string());
      const dim3 grid(static_cast<unsigned>(cuda::divide_up(C, kTile)), static_cast<unsigned>(tiles));
      quantise_both_kernel<T, kFormat>
          <<<grid, kThreads, 0, on.stream>>>(x, N, C, y, a.transposed.as<uint8_t>(), scale, amax);
    };
    a.format == DType::kE4M3 ? run.template operator()<__NV_E4M3>() : run.template operator()<__NV_E5M2>();
    TESSERA_CUDA_LAUNCHED();
  });
}

void CudaBackend::run_op(const UpdateScales& a, const Launch& on) {
  const int64_t R = a.amax.shape[0], S = a.scale.shape[1];
  update_scales_kernel<<<static_cast<unsigned>(cuda::divide_up(2 * S, kThreads)), kThreads, 0, on.stream>>>(
      a.amax.as<uint32_t>(), R, S, a.scale.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
