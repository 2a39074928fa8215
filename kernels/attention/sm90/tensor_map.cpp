#include "kernels/attention/sm90/tensor_map.h"

#include <cuda_runtime_api.h>

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

}  // namespace

AttnStatus make_tensor_map(CUtensorMap* map, const AttnTensor& tensor, int64_t batch, int64_t tokens,
                           int64_t heads, Box box) {
  static const Encode encode = find_encode();
  if (encode == nullptr) return ATTN_LAUNCH_FAILED;
  constexpr cuuint32_t kRank = 5;
  constexpr cuuint64_t kBytes = 2;
  const auto columns = static_cast<cuuint64_t>(box.columns);
  const auto panels = static_cast<cuuint32_t>(box.panels);
  const cuuint64_t sizes[kRank] = {columns, static_cast<cuuint64_t>(tokens), panels,
                                   static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[kRank - 1] = {tensor.row * kBytes, columns * kBytes, tensor.head * kBytes,
                                         tensor.batch * kBytes};
  const cuuint32_t extents[kRank] = {kPanel, static_cast<cuuint32_t>(box.rows), panels, 1, 1};
  const cuuint32_t every[kRank] = {1, 1, 1, 1, 1};
  const CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, tensor.data, sizes, strides,
                                 extents, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? ATTN_OK : ATTN_LAUNCH_FAILED;
}

}  // namespace tessera::attention::sm90
