#include "kernels/gemm/sm90/activations.cuh"
#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/launch.cuh"

namespace tessera::gemm {

cudaError_t run_relu2_backward(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kOther, Kind::kActivationBackward, SquaredRelu>(problem, multiprocessors, stream);
}

}  // namespace tessera::gemm
