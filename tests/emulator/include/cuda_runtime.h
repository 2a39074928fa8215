// CUDA's own header, and what nvcc would add to it: qualifiers, launches and the functions of the device.
#pragma once

#define cudaLaunchKernelEx cudaLaunchKernelExOfCuda  // which gives away the types of a kernel's parameters
#include_next <cuda_runtime.h>
#undef cudaLaunchKernelEx

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>

#include "tests/emulator/gpu.h"
#include "tests/emulator/include/device_index.h"
#include "tests/emulator/memory.h"
#include "tests/emulator/races.h"
#include "tests/emulator/runtime.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__

// ---- launches ----

namespace emulator {
template <class... Params>
void check_parameters(const Params&... params) {
  (check_parameter(&params, sizeof params, std::is_pointer_v<Params>), ...);
}
}  // namespace emulator

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  emulator::check_parameters(args...);
  return emulator::launch(*config, reinterpret_cast<const void*>(kernel),
                          [kernel, values = std::tuple<std::decay_t<Params>...>(
                                       std::forward<Args>(args)...)] { std::apply(kernel, values); });
}

template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
template <class Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, Kernel* kernel) {
  return cudaFuncGetAttributes(attributes, reinterpret_cast<const void*>(kernel));
}
template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel* kernel, int threads,
                                                          size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, reinterpret_cast<const void*>(kernel), threads,
                                                       shared_bytes);
}

namespace emulator {

// kernel<<<blocks, threads, shared_bytes, stream>>>(args...) is compiled as
// kernel ->* emulator::Launch(blocks, threads, shared_bytes, stream)(args...), with a pointer or a name
template <class... Args>
struct BoundLaunch {
  cudaLaunchConfig_t config;
  std::tuple<Args...> args;
};
struct Launch {
  cudaLaunchConfig_t config{};

  template <class Blocks, class Threads>
  Launch(Blocks blocks, Threads threads, size_t shared_bytes = 0, cudaStream_t stream = nullptr) {
    config.gridDim = size(blocks), config.blockDim = size(threads);
    config.dynamicSmemBytes = shared_bytes, config.stream = stream;
  }
  template <class... Args>
  BoundLaunch<Args...> operator()(const Args&... args) const {
    return {config, {args...}};
  }

 private:
  static dim3 size(dim3 of) { return of; }
  template <std::integral T>
  static dim3 size(T of) {
    return static_cast<unsigned>(of);
  }
};
template <class... Params, class... Args>
void operator->*(void (*kernel)(Params...), const BoundLaunch<Args...>& launch) {
  std::apply(
      [&](const auto&... args) { cudaLaunchKernelEx(&launch.config, kernel, static_cast<Params>(args)...); },
      launch.args);
}
template <class Call>
struct Named {
  Call call;
};
template <class Call, class... Args>
void operator->*(Named<Call> kernel, const BoundLaunch<Args...>& bound) {
  std::apply([](const auto&... args) { check_parameters(args...); }, bound.args);
  launch(bound.config, nullptr, [kernel, values = bound.args] { std::apply(kernel.call, values); });
}
#define EMULATED_KERNEL(...)                          \
  ::emulator::Named {                                 \
    [](const auto&... args) { __VA_ARGS__(args...); } \
  }

template <class T>
EMULATED_UNSEEN T from_words(std::span<const uint32_t> words) {
  T value;
  std::memcpy(&value, words.data(), sizeof value);
  return value;
}
// What the lanes of a mask gave
template <class T>
struct Given {
  std::span<const uint32_t[kWords]> words;
  EMULATED_UNSEEN T operator[](int lane) const { return from_words<T>(words[static_cast<size_t>(lane)]); }
};
template <class T>
Given<T> give(const char* operation, unsigned mask, const T& value) {
  static_assert(sizeof(T) % 4 == 0 && sizeof(T) <= 4 * kWords);
  uint32_t words[sizeof(T) / 4];
  std::memcpy(words, &value, sizeof value);
  return {exchange(operation, mask, words)};
}
// The lane to read from, of groups of `width`
inline int in_group(int lane, int width) { return emulator::lane() / width * width + lane; }

}  // namespace emulator

// ---- barriers, shuffles and votes ----

inline void __syncthreads() { emulator::barrier(0, 0, true); }
inline void __syncwarp(unsigned mask = ~0u) {
  const uint32_t nothing[1] = {};
  emulator::exchange("__syncwarp", mask, nothing, true);
}
template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  return emulator::give("__shfl_sync", mask, value)[emulator::in_group(from & (width - 1), width)];
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int from = emulator::lane() ^ bits;
  const auto all = emulator::give("__shfl_xor_sync", mask, value);
  return from / width <= emulator::lane() / width ? all[from] : value;
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int from = emulator::lane() % width - static_cast<int>(by);
  const auto all = emulator::give("__shfl_up_sync", mask, value);
  return from >= 0 ? all[emulator::in_group(from, width)] : value;
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int from = emulator::lane() % width + static_cast<int>(by);
  const auto all = emulator::give("__shfl_down_sync", mask, value);
  return from < width ? all[emulator::in_group(from, width)] : value;
}
inline unsigned __ballot_sync(unsigned mask, bool value) {
  const auto all = emulator::give("__ballot_sync", mask, static_cast<unsigned>(value));
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) votes |= all[i] << i;
  return votes;
}
inline unsigned __match_any_sync(unsigned mask, unsigned value) {
  const auto all = emulator::give("__match_any_sync", mask, value);
  unsigned same = 0;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) same |= static_cast<unsigned>(all[i] == value) << i;
  return same;
}
inline int __any_sync(unsigned mask, bool value) { return __ballot_sync(mask, value) != 0; }
template <class T, class F>
T reduce_lanes(const char* operation, unsigned mask, T value, F f) {
  const auto all = emulator::give(operation, mask, value);
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1 && i != emulator::lane()) value = f(value, all[i]);
  return value;
}
template <class T>
T __reduce_add_sync(unsigned mask, T value) {
  return reduce_lanes("__reduce_add_sync", mask, value, [](T a, T b) { return a + b; });
}
// Of the halves of two words
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return std::max(a & 0xffff0000u, b & 0xffff0000u) | std::max(a & 0xffffu, b & 0xffffu);
}
template <class T>
T __reduce_max_sync(unsigned mask, T value) {
  return reduce_lanes("__reduce_max_sync", mask, value, [](T a, T b) { return std::max(a, b); });
}
// ---- memory ----

template <class T>
T __ldg(const T* from) {
  return *from;
}
template <class T>
T __ldcg(const T* from) {
  return *from;
}
template <class T>
void __stcg(T* to, T value) {
  *to = value;
}
inline size_t __cvta_generic_to_shared(const void* at) { return emulator::shared_address(at); }
template <class T>
T atomicAdd(T* to, T value) {
  return std::atomic_ref(*to).fetch_add(value);
}
template <class T, class Better>
T atomic_better(T* to, T value, Better better) {
  std::atomic_ref at(*to);
  T old = at;
  while (better(value, old) && !at.compare_exchange_weak(old, value)) {
  }
  return old;
}
template <class T>
T atomicMax(T* to, T value) {
  return atomic_better(to, value, std::greater<T>());
}
template <class T>
T atomicMin(T* to, T value) {
  return atomic_better(to, value, std::less<T>());
}
inline unsigned atomicOr(unsigned* to, unsigned bits) { return std::atomic_ref(*to).fetch_or(bits); }
inline unsigned atomicInc(unsigned* to, unsigned most) {
  std::atomic_ref at(*to);
  unsigned old = at;
  while (!at.compare_exchange_weak(old, old >= most ? 0 : old + 1)) {
  }
  return old;
}
[[noreturn]] inline void __trap() { emulator::trap("__trap"); }

// ---- numbers ----

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
// Byte i of the result is the byte of x (0 to 3) or y (4 to 7) that digit i of `digits` names.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned digits) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 32; i += 8)
    result |= static_cast<unsigned>(both >> 8 * (digits >> i / 2 & 7) & 0xff) << i;
  return result;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) << (by & 31) >> 32);
}
inline uint64_t __umul64hi(uint64_t x, uint64_t y) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline float normcdff(float x) { return 0.5f * std::erfc(-x * 0.70710678f); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
using std::max;
using std::min;
