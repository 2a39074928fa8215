// cp.async as CUDA C++ has it.
#pragma once

#include <cstring>

#include "tests/emulator/gpu.h"

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0) {
  emulator::copy_later([=] {
    std::memcpy(to, from, bytes - zeros);
    std::memset(static_cast<char*>(to) + bytes - zeros, 0, zeros);
  });
}
inline void __pipeline_commit() { emulator::close_copies(); }
inline void __pipeline_wait_prior(size_t groups) { emulator::wait_for_copies(static_cast<int>(groups)); }
