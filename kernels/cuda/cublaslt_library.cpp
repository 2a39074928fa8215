// The functions of cuBLASLt that Tessera calls, each looked up in the library at its first call. So a program
// starts without the library, whose relocations alone take 0.1 s. The emulated GPU has its own.
#include <cublasLt.h>
#include <dlfcn.h>

#include "kernels/base/check.h"

namespace tessera {
namespace {

void* library() {
  static void* const handle = [] {
    const std::string name = fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000);
    // By name, in the folders of the loader; then in the folder of the build.
    void* loaded = dlopen(name.c_str(), RTLD_NOW);
    const std::string why = loaded == nullptr ? dlerror() : "";
    if (loaded == nullptr) loaded = dlopen(fmt::format("{}/{}", TESSERA_CUBLASLT_FOLDER, name).c_str(), RTLD_NOW);
    check(loaded != nullptr,
          "cannot load {} ({}). Install cuBLAS of CUDA {}, or add the library's folder to LD_LIBRARY_PATH", name,
          why, CUDART_VERSION / 1000);
    return loaded;
  }();
  return handle;
}

template <class Function>
Function find(const char* name) {
  void* const found = dlsym(library(), name);
  check(found != nullptr, "libcublasLt.so.{} has no function {}. Install a newer cuBLAS", CUDART_VERSION / 1000,
        name);
  return reinterpret_cast<Function>(found);
}

}  // namespace
}  // namespace tessera

#define FORWARD(result, name, parameters, arguments)                     \
  result name parameters {                                               \
    static const auto function = tessera::find<decltype(&name)>(#name);  \
    return function arguments;                                           \
  }

extern "C" {

FORWARD(cublasStatus_t, cublasLtCreate, (cublasLtHandle_t * handle), (handle))
FORWARD(cublasStatus_t, cublasLtDestroy, (cublasLtHandle_t handle), (handle))
FORWARD(const char*, cublasLtGetStatusString, (cublasStatus_t status), (status))
FORWARD(size_t, cublasLtGetVersion, (), ())
FORWARD(size_t, cublasLtGetCudartVersion, (), ())
FORWARD(cublasStatus_t, cublasLtMatmul,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
         cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
         const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
         const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes, cudaStream_t stream),
        (handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace,
         workspace_bytes, stream))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutCreate,
        (cublasLtMatrixLayout_t * layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld),
        (layout, type, rows, columns, ld))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutDestroy, (cublasLtMatrixLayout_t layout), (layout))
FORWARD(cublasStatus_t, cublasLtMatrixLayoutSetAttribute,
        (cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, const void* value, size_t size),
        (layout, attribute, value, size))
FORWARD(cublasStatus_t, cublasLtMatmulDescCreate,
        (cublasLtMatmulDesc_t * desc, cublasComputeType_t compute, cudaDataType_t scale), (desc, compute, scale))
FORWARD(cublasStatus_t, cublasLtMatmulDescDestroy, (cublasLtMatmulDesc_t desc), (desc))
FORWARD(cublasStatus_t, cublasLtMatmulDescSetAttribute,
        (cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t size),
        (desc, attribute, value, size))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceCreate, (cublasLtMatmulPreference_t * preference), (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceDestroy, (cublasLtMatmulPreference_t preference), (preference))
FORWARD(cublasStatus_t, cublasLtMatmulPreferenceSetAttribute,
        (cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
         size_t size),
        (preference, attribute, value, size))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoGetHeuristic,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
         cublasLtMatmulHeuristicResult_t* results, int* found),
        (handle, desc, a, b, c, d, preference, wanted, results, found))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoInit,
        (cublasLtHandle_t handle, cublasComputeType_t compute, cudaDataType_t scale, cudaDataType_t a,
         cudaDataType_t b, cudaDataType_t c, cudaDataType_t d, int id, cublasLtMatmulAlgo_t* algo),
        (handle, compute, scale, a, b, c, d, id, algo))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoCheck,
        (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
         cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
         cublasLtMatmulHeuristicResult_t* result),
        (handle, desc, a, b, c, d, algo, result))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoConfigSetAttribute,
        (cublasLtMatmulAlgo_t * algo, cublasLtMatmulAlgoConfigAttributes_t attribute, const void* value, size_t size),
        (algo, attribute, value, size))
FORWARD(cublasStatus_t, cublasLtMatmulAlgoConfigGetAttribute,
        (const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t attribute, void* value, size_t size,
         size_t* written),
        (algo, attribute, value, size, written))

}  // extern "C"
