#include "kernels/base/check.h"
#include "kernels/cuda/cuda_backend.h"

namespace tessera {

void CudaBackend::run_op(const CacheAppend& a, const Launch& /*on*/) { fail("{}: not on CUDA yet", a.kName); }
void CudaBackend::run_op(const SampleTokens& a, const Launch& /*on*/) {
  fail("{}: not on CUDA yet", a.kName);
}

}  // namespace tessera
