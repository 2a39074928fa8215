// What each wrapper of this header does, on the emulated GPU.
#pragma once

#include "kernels/base/ptx.cuh"

namespace tessera::ptx {

inline void ldmatrix_x4_trans(uint32_t (&d)[4], uint32_t shared_address) {
  load_matrices<true>(d, shared_address);
}

inline void store_shared(uint32_t at, uint32_t value) { store_to_shared(at, value); }
inline uint32_t load_shared(uint32_t at) { return load_from_shared<uint32_t>(at); }

}  // namespace tessera::ptx
