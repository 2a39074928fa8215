#include "kernels/gemm/sm90/activations.cuh"
#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/launch.cuh"

namespace tessera::gemm {

cudaError_t run_relu(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, Relu>(problem, multiprocessors, stream);
}

}  // namespace tessera::gemm
