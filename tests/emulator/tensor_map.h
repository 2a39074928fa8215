// Tensor maps of the copy engine (PTX ISA 9.0, 5.5), and copies by them.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

namespace emulator {

using Coordinates = std::array<int, 5>;  // from the contiguous dimension on

// As cuTensorMapEncodeTiled(): of bf16, with the swizzle of 128 bytes
CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* data,
                           const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* extents,
                           const cuuint32_t* every, CUtensorMapInterleave interleave,
                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                           CUtensorMapFloatOOBfill fill);

// A box between memory and shared memory; what lies outside of the tensor is zero, or is not written.
void load_box(void* shared, const CUtensorMap& map, const Coordinates& at);
void store_box(const CUtensorMap& map, const void* shared, const Coordinates& at);
uint32_t bytes_of_box(const CUtensorMap& map);

}  // namespace emulator
