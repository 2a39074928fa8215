// Elements in 16-byte packs, the widest access a thread has: 8 bf16 or 4 fp32, computed on as floats.
//
// load_pack() and store_pack() move raw bits, so that a kernel can hold a row in half the registers;
// unpack() and pack() convert, rounding to nearest even. Addresses are multiples of 16 bytes.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/base/tensor.h"

namespace tessera {

using bf16 = __nv_bfloat16;

template <class T>
inline constexpr int kPackWidth = 16 / sizeof(T);

template <class T>
__device__ __forceinline__ uint4 load_pack(const T* from) {
  return *reinterpret_cast<const uint4*>(from);
}

template <class T>
__device__ __forceinline__ void store_pack(T* to, uint4 raw) {
  *reinterpret_cast<uint4*>(to) = raw;
}

template <class T>
__device__ __forceinline__ void unpack(uint4 raw, float (&to)[kPackWidth<T>]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 2) {  // a bf16 is the upper half of the float with the same value
      to[2 * i] = __uint_as_float(words[i] << 16);
      to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    } else {
      to[i] = __uint_as_float(words[i]);
    }
  }
}

template <class T>
__device__ __forceinline__ uint4 pack(const float (&from)[kPackWidth<T>]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
      words[i] = *reinterpret_cast<const uint32_t*>(&pair);
    } else {
      words[i] = __float_as_uint(from[i]);
    }
  }
  return {words[0], words[1], words[2], words[3]};
}

template <class T>
__device__ __forceinline__ void load_floats(const T* from, float (&to)[kPackWidth<T>]) {
  unpack<T>(load_pack(from), to);
}

template <class T>
__device__ __forceinline__ void store_floats(T* to, const float (&from)[kPackWidth<T>]) {
  store_pack(to, pack<T>(from));
}

// Steps of kStep elements, a pack or a single one: for rows that do not begin at multiples of 16 bytes.
template <class T, int kStep>
__device__ __forceinline__ void load_step(const T* from, float (&to)[kStep]) {
  if constexpr (kStep == 1) {
    to[0] = static_cast<float>(*from);
  } else {
    load_floats(from, to);
  }
}

template <class T, int kStep>
__device__ __forceinline__ void store_step(T* to, const float (&from)[kStep]) {
  if constexpr (kStep == 1) {
    *to = static_cast<T>(from[0]);
  } else {
    store_floats(to, from);
  }
}

// f.template operator()<T>() with T the C++ type of a real dtype.
template <class F>
void with_real_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBF16:
      return f.template operator()<bf16>();
    case DType::kF32:
      return f.template operator()<float>();
    case DType::kI32:
    case DType::kU16:
    case DType::kE4M3:
    case DType::kE5M2:
      fail("the dtype must be bf16 or fp32, found {}", name_of(dtype));
  }
}

}  // namespace tessera
