#include "kernels/hopper/tensor_map.h"

#include <cuda_runtime_api.h>

#include <span>

namespace tessera::hopper {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Asked of the driver at run time, so that programs link without libcuda and start where there is no GPU.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  constexpr const char* kName = "cuTensorMapEncodeTiled";
#if CUDART_VERSION >= 12050
  constexpr unsigned kCudaVersion = 12000;  // the first that has it
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(kName, &function, kCudaVersion, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &found);
#endif
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function)
                                                                      : nullptr;
}

// Sizes and extents begin with the contiguous dimension; strides, in bytes, are those of the others.
bool encode(CUtensorMap& map, void* data, std::span<const cuuint64_t> sizes,
            std::span<const cuuint64_t> strides, std::span<const cuuint32_t> extents) {
  static const Encode encode_tiled = find_encode();
  constexpr cuuint32_t kEvery[] = {1, 1, 1, 1, 1};
  return encode_tiled != nullptr &&
         encode_tiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(sizes.size()), data,
                      sizes.data(), strides.data(), extents.data(), kEvery, CU_TENSOR_MAP_INTERLEAVE_NONE,
                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

constexpr cuuint64_t kBytes = 2;  // of an element

}  // namespace

bool make_tensor_map(CUtensorMap& map, const HeadBoxes& boxes) {
  constexpr cuuint32_t kRank = 5;
  const View<void>& tensor = boxes.tensor;
  const auto columns = static_cast<cuuint64_t>(boxes.box.columns);
  const auto panels = static_cast<cuuint32_t>(boxes.box.panels);
  const cuuint64_t sizes[kRank] = {columns, static_cast<cuuint64_t>(boxes.tokens), panels,
                                   static_cast<cuuint64_t>(boxes.heads),
                                   static_cast<cuuint64_t>(boxes.batch)};
  const cuuint64_t strides[kRank - 1] = {tensor.row * kBytes, columns * kBytes, tensor.head * kBytes,
                                         tensor.batch * kBytes};
  const cuuint32_t extents[kRank] = {kPanel, static_cast<cuuint32_t>(boxes.box.rows), panels, 1, 1};
  return encode(map, tensor.data, sizes, strides, extents);
}

bool make_tensor_map(CUtensorMap& map, const MatrixBoxes& boxes) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(boxes.columns), static_cast<cuuint64_t>(boxes.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(boxes.ld) * kBytes};
  const cuuint32_t extents[] = {kPanel, static_cast<cuuint32_t>(boxes.box_rows)};
  return encode(map, const_cast<void*>(boxes.data), sizes, strides, extents);
}

}  // namespace tessera::hopper
