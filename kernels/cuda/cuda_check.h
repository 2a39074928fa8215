// Calls of CUDA and cuBLASLt that must succeed: TESSERA_CUDA(call) throws an Error with the call and place.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "kernels/base/check.h"

namespace tessera {

inline void cuda_check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  fail("CUDA: {} ({}) at {}:{} in {}", cudaGetErrorString(status), cudaGetErrorName(status), file, line,
       call);
}

inline void cuda_check(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail("cuBLASLt: {} at {}:{} in {}", cublasLtGetStatusString(status), file, line, call);
}

}  // namespace tessera

#define TESSERA_CUDA(call) ::tessera::cuda_check((call), #call, __FILE__, __LINE__)
// After a kernel launch: a launch that was refused is reported at its own line, not at the next call's.
#define TESSERA_CUDA_LAUNCHED() ::tessera::cuda_check(cudaGetLastError(), "kernel launch", __FILE__, __LINE__)
