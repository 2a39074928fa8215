// What the wrapper of this header does, on the emulated GPU.
#pragma once

#include "kernels/attention/sm80/ptx.cuh"

namespace tessera::ptx {

inline uint32_t transpose_8x8(uint32_t x) {
  const auto all = emulator::give("movmatrix", ~0u, x);
  const int row = emulator::lane() / 4, column = emulator::lane() % 4 * 2;
  const auto element = [&](int r, int c) { return all[4 * r + c / 2] >> 16 * (c % 2) & 0xffff; };
  return element(column + 1, row) << 16 | element(column, row);
}

}  // namespace tessera::ptx
