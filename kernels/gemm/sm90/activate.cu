#include "kernels/gemm/sm90/activations.cuh"
#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/launch.cuh"

namespace tessera::gemm {

cudaError_t run_gelu(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, TanhGelu>(problem, multiprocessors, stream);
}
cudaError_t run_gelu_exact(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, ExactGelu>(problem, multiprocessors, stream);
}
cudaError_t run_relu(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, Relu>(problem, multiprocessors, stream);
}
cudaError_t run_relu2(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, SquaredRelu>(problem, multiprocessors, stream);
}
cudaError_t run_gelu_backward(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kOther, Kind::kActivationBackward, TanhGelu>(problem, multiprocessors, stream);
}
cudaError_t run_gelu_exact_backward(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kOther, Kind::kActivationBackward, ExactGelu>(problem, multiprocessors, stream);
}
cudaError_t run_relu_backward(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kOther, Kind::kActivationBackward, Relu>(problem, multiprocessors, stream);
}
cudaError_t run_relu2_backward(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kOther, Kind::kActivationBackward, SquaredRelu>(problem, multiprocessors, stream);
}

}  // namespace tessera::gemm
