#include "kernels/attention/sm90/tensor_map.h"

#include <cuda_runtime_api.h>

#include <span>

namespace tessera::attention::sm90 {
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

// Boxes with the swizzle of 128 bytes; sizes and extents from the contiguous dimension on, strides of others
bool encode(CUtensorMap* map, void* data, std::span<const cuuint64_t> sizes,
            std::span<const cuuint64_t> strides, std::span<const cuuint32_t> extents) {
  static const Encode encode_tiled = find_encode();
  constexpr cuuint32_t kEvery[] = {1, 1, 1, 1, 1};
  return encode_tiled != nullptr &&
         encode_tiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(sizes.size()), data,
                      sizes.data(), strides.data(), extents.data(), kEvery, CU_TENSOR_MAP_INTERLEAVE_NONE,
                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

constexpr cuuint64_t kBytes = 2;  // of an element

}  // namespace

AttnStatus make_tensor_map(CUtensorMap* map, const AttnTensor& tensor, int64_t batch, int64_t tokens,
                           int64_t heads, Box box) {
  constexpr cuuint32_t kRank = 5;
  const auto columns = static_cast<cuuint64_t>(box.columns);
  const auto panels = static_cast<cuuint32_t>(box.panels);
  const cuuint64_t sizes[kRank] = {columns, static_cast<cuuint64_t>(tokens), panels,
                                   static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[kRank - 1] = {tensor.row * kBytes, columns * kBytes, tensor.head * kBytes,
                                         tensor.batch * kBytes};
  const cuuint32_t extents[kRank] = {kPanel, static_cast<cuuint32_t>(box.rows), panels, 1, 1};
  return encode(map, tensor.data, sizes, strides, extents) ? ATTN_OK : ATTN_LAUNCH_FAILED;
}

bool make_matrix_map(CUtensorMap* map, const void* data, int64_t rows, int64_t columns, int64_t ld,
                     int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(ld) * kBytes};
  const cuuint32_t extents[] = {kPanel, static_cast<cuuint32_t>(box_rows)};
  return encode(map, const_cast<void*>(data), sizes, strides, extents);
}

}  // namespace tessera::attention::sm90
