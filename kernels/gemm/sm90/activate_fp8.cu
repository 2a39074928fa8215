#include "kernels/gemm/sm90/activations.cuh"
#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/launch.cuh"

namespace tessera::gemm {

cudaError_t run_gelu_fp8(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, TanhGelu, Operands::kE4m3>(problem, multiprocessors, stream);
}
cudaError_t run_gelu_exact_fp8(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, ExactGelu, Operands::kE4m3>(problem, multiprocessors, stream);
}
cudaError_t run_gelu_backward_fp8(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivationBackward, TanhGelu, Operands::kE5m2>(problem, multiprocessors,
                                                                                   stream);
}
cudaError_t run_gelu_exact_backward_fp8(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivationBackward, ExactGelu, Operands::kE5m2>(problem, multiprocessors,
                                                                                    stream);
}

}  // namespace tessera::gemm
