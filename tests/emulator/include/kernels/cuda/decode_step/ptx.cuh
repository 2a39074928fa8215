// What each wrapper of this header does, on the emulated GPU.
#pragma once

#include "kernels/hopper/ptx.cuh"

namespace tessera::ptx {

// Polled by those who wait: others have their turns meanwhile. A wider access than a word is not one event on
// a GPU either.
inline uint32_t load_word(const uint32_t* from) {
  return std::atomic_ref(*const_cast<uint32_t*>(from)).load(std::memory_order_relaxed);
}
inline uint32_t load_relaxed(const uint32_t* from) {
  emulator::let_others_run();
  return load_word(from);
}
inline uint2 load_relaxed_uint2(const uint32_t* from) {
  emulator::let_others_run();
  return {load_word(from), load_word(from + 1)};
}
inline uint4 load_relaxed_uint4(const uint32_t* from) {
  emulator::let_others_run();
  return {load_word(from), load_word(from + 1), load_word(from + 2), load_word(from + 3)};
}
inline void store_relaxed(uint32_t* to, uint32_t value) {
  std::atomic_ref(*to).store(value, std::memory_order_relaxed);
}
inline void store_relaxed(uint32_t* to, uint2 value) {
  store_relaxed(to, value.x), store_relaxed(to + 1, value.y);
}
inline void store_relaxed(uint32_t* to, uint4 value) {
  store_relaxed(to, uint2{value.x, value.y}), store_relaxed(to + 2, uint2{value.z, value.w});
}

inline uint64_t policy_of_once() { return 0; }
inline void load_bytes_once(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t) {
  load_bytes(to, from, bytes, barrier);
}
template <class T>
void opaque(T*&) {}
inline void prefetch_line(const void*) {}

}  // namespace tessera::ptx
