#include "kernels/cuda/cuda_backend.h"
#include "kernels/gemm/linear_gemms.h"

namespace tessera {

void CudaBackend::run_op(const LoraForward& a, const Launch& on) {
  each_gemm(a, [&](const Gemm& one) { gemm(one, on); });
}

void CudaBackend::run_op(const LoraBackward& a, const Launch& on) {
  each_gemm(a, [&](const Gemm& one) { gemm(one, on); });
}

}  // namespace tessera
