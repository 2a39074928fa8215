// What each wrapper of this header does, on the emulated GPU.
#pragma once

#include "kernels/base/ptx.cuh"

namespace tessera::ptx {

inline void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t shared_address) {
  load_matrices<true>(d, shared_address);
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

inline void store_shared(uint32_t at, uint32_t value) { store_to_shared(at, value); }
inline uint32_t load_shared(uint32_t at) { return load_from_shared<uint32_t>(at); }

}  // namespace tessera::ptx
