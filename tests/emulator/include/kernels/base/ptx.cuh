// What each wrapper of this header does, on the emulated GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>

namespace tessera::ptx {

inline float exp2(float x) { return std::exp2(x); }
inline float log2(float x) { return std::log2(x); }
inline float reciprocal(float x) { return 1 / x; }

inline float float_of_bf16(uint32_t bits) { return __uint_as_float(bits << 16); }
inline uint32_t pack_bf16(float low, float high) {
  const auto bits = [](float x) { return uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(x))}; };
  return bits(high) << 16 | bits(low);
}

inline uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t select = selector >> 4 * i & 0xf;
    uint32_t byte = static_cast<uint32_t>(bytes >> 8 * (select & 7)) & 0xff;
    if (select & 8) byte = byte & 0x80 ? 0xff : 0;
    out |= byte << 8 * i;
  }
  return out;
}

inline uint32_t max_bf16(uint32_t x, uint32_t y) {
  const auto larger = [](uint32_t a, uint32_t b) -> uint32_t {
    const float fa = float_of_bf16(a), fb = float_of_bf16(b);
    if (fa != fa || fb != fb) return 0x7fff;
    return fa > fb || (fa == fb && !(a >> 15)) ? a : b;
  };
  return larger(x >> 16, y >> 16) << 16 | larger(x & 0xffff, y & 0xffff);
}

// 16-bit element (row, column) of the matrix whose row i lies at the address that lane `first` + i gave
EMULATED_UNSEEN inline uint16_t element(const emulator::Given<uint32_t>& rows, int first, int row,
                                        int column) {
  return static_cast<const uint16_t*>(emulator::at_shared(rows[first + row]))[column];
}
template <bool kTransposed>
void load_matrices(uint32_t (&d)[4], uint32_t shared_address) {
  emulator::reads(emulator::at_shared(shared_address), 16);
  const auto rows = emulator::give("ldmatrix", ~0u, shared_address);
  const int row = emulator::lane() / 4, column = emulator::lane() % 4 * 2;
  for (int i = 0; i < 4; ++i)
    d[i] = kTransposed ? element(rows, 8 * i, column + 1, row) << 16 | element(rows, 8 * i, column, row)
                       : element(rows, 8 * i, row, column + 1) << 16 | element(rows, 8 * i, row, column);
  __syncwarp();  // nobody overwrites what another has yet to read
}
inline void ldmatrix_x4(uint32_t (&d)[4], uint32_t shared_address) {
  load_matrices<false>(d, shared_address);
}

inline void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t shared_address) {
  load_matrices<true>(d, shared_address);
}

inline uint32_t transpose_8x8(uint32_t x) {
  const auto all = emulator::give("movmatrix", ~0u, x);
  const int row = emulator::lane() / 4, column = emulator::lane() % 4 * 2;
  const auto element = [&](int r, int c) { return all[4 * r + c / 2] >> 16 * (c % 2) & 0xffff; };
  return element(column + 1, row) << 16 | element(column, row);
}

inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Registers {
    uint32_t a[4], b[2];
  };
  const auto all = emulator::give("mma", ~0u, Registers{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const int row = emulator::lane() / 4, column = emulator::lane() % 4 * 2;
  Registers of_row[4], of_column[2][4];
  for (int i = 0; i < 4; ++i) {
    of_row[i] = all[4 * row + i];
    of_column[0][i] = all[4 * column + i];
    of_column[1][i] = all[4 * (column + 1) + i];
  }
  for (int half = 0; half < 2; ++half)  // rows 0 to 7, 8 to 15
    for (int c = 0; c < 2; ++c)         // columns
      for (int k = 0; k < 16; ++k) {
        const int from = k % 8 / 2, bits = 16 * (k % 2);
        const float x = float_of_bf16(of_row[from].a[half + 2 * (k / 8)] >> bits & 0xffff);
        const float y = float_of_bf16(of_column[c][from].b[k / 8] >> bits & 0xffff);
        d[2 * half + c] += x * y;
      }
}

inline void let_next_kernel_start() {}
inline void wait_for_previous_kernel() {}

template <class T>
T load_from_shared(uint32_t shared_address) {
  T value;
  if (shared_address % alignof(T) != 0) emulator::trap("a misaligned load from shared memory");
  std::memcpy(&value, emulator::at_shared(shared_address), sizeof value);
  return value;
}
template <class T>
void store_to_shared(uint32_t shared_address, T value) {
  if (shared_address % alignof(T) != 0) emulator::trap("a misaligned store to shared memory");
  std::memcpy(emulator::at_shared(shared_address), &value, sizeof value);
}
inline float2 load_shared_float2(uint32_t at) { return load_from_shared<float2>(at); }
inline uint2 load_shared_uint2(uint32_t at) { return load_from_shared<uint2>(at); }
inline int2 load_shared_int2(uint32_t at) { return load_from_shared<int2>(at); }
inline uint4 load_shared_uint4(uint32_t at) { return load_from_shared<uint4>(at); }

// Polled by those who wait: others have their turns meanwhile.
inline uint32_t load_acquire(const uint32_t* address) {
  emulator::let_others_run();
  return std::atomic_ref(*const_cast<uint32_t*>(address)).load(std::memory_order_acquire);
}
inline void red_add_release(uint32_t* address, uint32_t value) {
  std::atomic_ref(*address).fetch_add(value, std::memory_order_release);
}

inline void cp_async_16(uint32_t shared_address, const void* from, bool valid = true) {
  if (shared_address % 16 != 0 || (valid && reinterpret_cast<uintptr_t>(from) % 16 != 0))
    emulator::trap("a misaligned cp.async");
  emulator::copy_later([=, to = emulator::at_shared(shared_address)] {
    valid ? std::memcpy(to, from, 16) : std::memset(to, 0, 16);
  });
}
inline void cp_async_commit() { emulator::close_copies(); }
template <int kPending>
void cp_async_wait() {
  emulator::wait_for_copies(kPending);
}

}  // namespace tessera::ptx
