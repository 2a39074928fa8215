// What each wrapper of this header does, on the emulated GPU.
#pragma once

#include <cuda.h>

#include "kernels/base/fp8.h"
#include "kernels/base/ptx.cuh"
#include "tests/emulator/tensor_map.h"

namespace tessera::ptx {

// ---- mbarrier: in its 8 bytes, arrivals of a phase, those that have yet to come, the parity of the phase,
// and the bytes that were announced and have not come ----

struct Mbarrier {
  uint16_t arrivals, pending;
  int32_t parity : 1, bytes : 31;
};
static_assert(sizeof(Mbarrier) == 8);

template <class F>
void change(void* at, F f) {
  emulator::release(at);
  std::atomic_ref word(*static_cast<uint64_t*>(at));
  uint64_t old = word.load(std::memory_order_relaxed);
  for (;;) {
    Mbarrier b = std::bit_cast<Mbarrier>(old);
    f(b);
    if (b.pending == 0 && b.bytes == 0) b.pending = b.arrivals, b.parity = ~b.parity;
    if (word.compare_exchange_weak(old, std::bit_cast<uint64_t>(b), std::memory_order_relaxed)) return;
  }
}
inline void arrive(void* at) {
  change(at, [](Mbarrier& b) {
    if (b.pending == 0) emulator::trap("one arrival too many at an mbarrier");
    --b.pending;
  });
}
inline void bring(void* at, uint32_t bytes) {
  change(at, [&](Mbarrier& b) { b.bytes -= static_cast<int32_t>(bytes); });
}

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  const auto count = static_cast<uint16_t>(arrivals);
  std::atomic_ref(*static_cast<uint64_t*>(emulator::at_shared(barrier)))
      .store(std::bit_cast<uint64_t>(Mbarrier{count, count, 0, 0}), std::memory_order_relaxed);
}
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint32_t barrier) { arrive(emulator::at_shared(barrier)); }
inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  change(emulator::at_shared(barrier), [&](Mbarrier& b) {
    if (b.pending == 0) emulator::trap("one arrival too many at an mbarrier");
    b.bytes += static_cast<int32_t>(bytes);
    --b.pending;
  });
}
inline void cp_async_arrive(uint32_t barrier) {
  emulator::after_copies([at = emulator::at_shared(barrier)] { arrive(at); });
}
inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  const std::atomic_ref word(*static_cast<uint64_t*>(emulator::at_shared(barrier)));
  emulator::wait_until("an mbarrier", [&] {
    return static_cast<uint32_t>(std::bit_cast<Mbarrier>(word.load(std::memory_order_relaxed)).parity & 1) !=
           parity;
  });
  emulator::acquire(emulator::at_shared(barrier));
}

// ---- clusters ----

inline uint32_t cluster_rank() { return static_cast<uint32_t>(emulator::cluster_rank()); }
inline void cluster_sync() { emulator::cluster_barrier(); }
inline void mbarrier_arrive_at(uint32_t barrier, uint32_t cta) {
  arrive(emulator::at_shared_of(barrier, static_cast<int>(cta)));
}

// ---- named barriers ----

inline void barrier_sync(int id, int threads) { emulator::barrier(id, threads, true); }
inline void barrier_arrive(int id, int threads) { emulator::barrier(id, threads, false); }

// ---- the copy engine ----

inline void load(uint32_t to, const CUtensorMap& map, uint32_t barrier, const emulator::Coordinates& at) {
  emulator::transfer([=, box = emulator::at_shared(to), full = emulator::at_shared(barrier)] {
    emulator::load_box(box, map, at);
    bring(full, emulator::bytes_of_box(map));
  });
}
inline void store(const CUtensorMap& map, uint32_t from, const emulator::Coordinates& at) {
  emulator::transfer_in_group([=, box = emulator::at_shared(from)] { emulator::store_box(map, box, at); });
}
inline void load_tile(uint32_t to, const CUtensorMap& map, uint32_t barrier, int token, int head, int batch) {
  load(to, map, barrier, {0, token, 0, head, batch});
}
inline void load_panel(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int token, int head,
                       int batch) {
  load(to, map, barrier, {column, token, 0, head, batch});
}
inline void store_tile(const CUtensorMap& map, uint32_t from, int token, int head, int batch) {
  store(map, from, {0, token, 0, head, batch});
}
inline void store_panel(const CUtensorMap& map, uint32_t from, int column, int token, int head, int batch) {
  store(map, from, {column, token, 0, head, batch});
}
inline void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column, int row) {
  load(to, map, barrier, {column, row});
}
inline void store_box(const CUtensorMap& map, uint32_t from, int column, int row) {
  store(map, from, {column, row});
}
inline void load_box_to(uint16_t ctas, uint32_t to, const CUtensorMap& map, uint32_t barrier, int column,
                        int row) {
  for (int rank = 0; rank < 16; ++rank) {
    if (!(ctas >> rank & 1)) continue;
    emulator::transfer(
        [=, box = emulator::at_shared_of(to, rank), full = emulator::at_shared_of(barrier, rank)] {
          emulator::load_box(box, map, {column, row});
          bring(full, emulator::bytes_of_box(map));
        });
  }
}
inline void check_bulk(uint32_t shared, const void* global, uint32_t bytes) {
  if (shared % 16 != 0 || reinterpret_cast<uintptr_t>(global) % 16 != 0 || bytes % 16 != 0)
    emulator::trap("a misaligned bulk copy");
}
inline void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  check_bulk(to, from, bytes);
  emulator::transfer([=, at = emulator::at_shared(to), full = emulator::at_shared(barrier)] {
    std::memcpy(at, from, bytes);
    bring(full, bytes);
  });
}
inline void store_bytes(void* to, uint32_t from, uint32_t bytes) {
  check_bulk(from, to, bytes);
  emulator::transfer_in_group([=, at = emulator::at_shared(from)] { std::memcpy(to, at, bytes); });
}
inline void add_floats(float* to, uint32_t from, uint32_t bytes) {
  check_bulk(from, to, bytes);
  emulator::transfer_in_group([=, at = static_cast<const float*>(emulator::at_shared(from))] {
    for (uint32_t i = 0; i < bytes / 4; ++i) std::atomic_ref(to[i]).fetch_add(at[i]);
  });
}
inline void bulk_commit() { emulator::close_transfers(); }
template <int kPending>
void bulk_wait_read() {
  emulator::wait_for_transfers(kPending);
}
template <int kPending>
void bulk_wait() {
  emulator::wait_for_transfers(kPending);
}
inline void prefetch(const CUtensorMap&) {}
inline void fence_shared_for_async() {}
inline void fence_global_for_async() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// ---- registers and fragments ----

template <int kRegisters>
void give_registers() {}
template <int kRegisters>
void take_registers() {}
inline void stmatrix_x4(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const auto rows = emulator::give("stmatrix", ~0u, to);
  const uint32_t matrices[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i)
    std::memcpy(static_cast<char*>(emulator::at_shared(rows[8 * i + emulator::lane() / 4])) +
                    emulator::lane() % 4 * 4,
                &matrices[i], 4);
}
inline void store_shared(uint32_t to, float4 value) { store_to_shared(to, value); }
inline void store_shared(uint32_t to, uint4 value) { store_to_shared(to, value); }
inline void store_shared(uint32_t to, uint2 value) { store_to_shared(to, value); }
inline void store_shared(uint32_t to, float value) { store_to_shared(to, value); }
inline void store_shared(uint32_t to, float2 value) { store_to_shared(to, value); }
inline float load_shared_float(uint32_t from) { return load_from_shared<float>(from); }
inline float4 load_shared_float4(uint32_t from) { return load_from_shared<float4>(from); }

// ---- wgmma: each thread computes its own elements at once; that one has waited means that all have ----

inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kPending>
void wgmma_wait() {
  emulator::warpgroup_barrier();
}
inline void opaque(uint32_t&) {}
inline void opaque(const char*&) {}
template <int kCount>
void hold(float (&)[kCount]) {}
template <int kCount>
void hold(uint32_t (&)[kCount]) {}

enum class Major { kSum, kOther };

// An operand in shared memory, with the swizzle of 128 bytes (PTX ISA 9.0, 9.7.15.5.1)
template <Major kMajor>
struct Operand {
  uint32_t base, panels, groups;
  explicit Operand(uint64_t descriptor)
      : base((descriptor & 0x3fff) << 4),
        panels((descriptor >> 16 & 0x3fff) << 4),
        groups((descriptor >> 32 & 0x3fff) << 4) {
    if (descriptor >> 62 != 1) emulator::trap("wgmma: a swizzle that is not of 128 bytes");
  }
  const void* element(int row, int k) const {
    uint32_t address = kMajor == Major::kSum
                           ? base + row / 8 * groups + row % 8 * 128 + k * 2
                           : base + row / 64 * panels + k / 8 * groups + k % 8 * 128 + row % 64 * 2;
    return emulator::at_shared(address ^ (address >> 7 & 7) << 4);
  }
  EMULATED_UNSEEN float at(int row, int k) const {
    return float_of_bf16(*static_cast<const uint16_t*>(element(row, k)));
  }
  // What the tensor core reads of it
  void read(int rows) const {
    constexpr int kInRow = kMajor == Major::kSum ? 1 : 8;  // rows and sums of a chunk of 16 bytes
    for (int row = 0; row < rows; row += kInRow)
      for (int k = 0; k < 16; k += 8 / kInRow) emulator::reads(element(row, k), 16);
  }
};

template <int kN>
struct Wgmma {
  template <Major kA, Major kB>
  static void shared(float (&d)[kN / 2], uint64_t a, uint64_t b, bool add) {
    const Operand<kA> left(a);
    if (threadIdx.x % 128 == 0) left.read(64);
    multiply<kB>(d, b, add, [&](int row, int k) { return left.at(16 * (threadIdx.x / 32 % 4) + row, k); });
  }
  template <Major kB>
  static void registers(float (&d)[kN / 2], const uint32_t* a, uint64_t b, bool add) {
    struct Fragment {
      uint32_t a[4];
    };
    const auto all = emulator::give("wgmma", ~0u, Fragment{{a[0], a[1], a[2], a[3]}});
    Fragment of_row[4];
    for (int i = 0; i < 4; ++i) of_row[i] = all[emulator::lane() / 4 * 4 + i];
    multiply<kB>(d, b, add, [&](int row, int k) {
      return float_of_bf16(of_row[k % 8 / 2].a[row / 8 + 2 * (k / 8)] >> 16 * (k % 2) & 0xffff);
    });
  }

 private:
  // left(row of the warp's 16, k)
  template <Major kB, class Left>
  static void multiply(float (&d)[kN / 2], uint64_t b, bool add, Left left) {
    const Operand<kB> right(b);
    if (threadIdx.x % 128 == 0) right.read(kN);
    const int row = emulator::lane() / 4, column = emulator::lane() % 4 * 2;
    float of_rows[2][16];
    for (int k = 0; k < 16; ++k) of_rows[0][k] = left(row, k), of_rows[1][k] = left(row + 8, k);
    for (int i = 0; i < kN / 4; ++i) {  // columns of this thread
      float of_column[16];
      for (int k = 0; k < 16; ++k) of_column[k] = right.at(i / 2 * 8 + column + i % 2, k);
      for (int half = 0; half < 2; ++half) {
        float& sum = d[i / 2 * 4 + half * 2 + i % 2];
        float products = 0;
        for (int k = 0; k < 16; ++k) products += of_rows[half][k] * of_column[k];
        sum = add ? sum + products : products;
      }
    }
  }
};

template <int kN>
struct WgmmaFp8 {
  template <bool kE5m2>
  static void shared(float (&d)[kN / 2], uint64_t a, uint64_t b, bool add) {
    const Operand<Major::kSum> left(a);
    if (threadIdx.x % 128 == 0) left.read(64);
    const int row = 16 * (threadIdx.x / 32 % 4) + emulator::lane() / 4;
    multiply(d, b, add, [&](int half, int k) {
      return code(left, row + 8 * half, k, kE5m2 ? DType::kE5M2 : DType::kE4M3);
    });
  }
  static void registers(float (&d)[kN / 2], const uint32_t* a, uint64_t b, bool add) {
    struct Fragment {
      uint32_t a[4];
    };
    const auto all = emulator::give("wgmma", ~0u, Fragment{{a[0], a[1], a[2], a[3]}});
    Fragment of_row[4];
    for (int i = 0; i < 4; ++i) of_row[i] = all[emulator::lane() / 4 * 4 + i];
    multiply(d, b, add, [&](int half, int k) {
      const uint32_t word = of_row[k % 16 / 4].a[half + 2 * (k / 16)];
      return float_from_fp8(static_cast<uint8_t>(word >> 8 * (k % 4)), DType::kE4M3);
    });
  }

 private:
  // left(0 or 1: the row of the thread or the one 8 below, k)
  template <class Left>
  static void multiply(float (&d)[kN / 2], uint64_t b, bool add, Left left) {
    const Operand<Major::kSum> right(b);
    if (threadIdx.x % 128 == 0) right.read(kN);
    const int column = emulator::lane() % 4 * 2;
    float of_rows[2][32];
    for (int k = 0; k < 32; ++k)
      for (int half = 0; half < 2; ++half) of_rows[half][k] = left(half, k);
    for (int i = 0; i < kN / 4; ++i) {  // columns of this thread
      float of_column[32];
      for (int k = 0; k < 32; ++k) of_column[k] = code(right, i / 2 * 8 + column + i % 2, k, DType::kE4M3);
      for (int half = 0; half < 2; ++half) {
        float& sum = d[i / 2 * 4 + half * 2 + i % 2];
        float products = 0;
        for (int k = 0; k < 32; ++k) products += of_rows[half][k] * of_column[k];
        sum = add ? sum + products : products;
      }
    }
  }
  // Two codes lie where an element of bf16 would.
  EMULATED_UNSEEN static float code(const Operand<Major::kSum>& operand, int row, int k, DType format) {
    return float_from_fp8(static_cast<const uint8_t*>(operand.element(row, k / 2))[k % 2], format);
  }
};

}  // namespace tessera::ptx
