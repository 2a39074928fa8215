#include "kernels/gemm/sm90/activations.cuh"
#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/launch.cuh"

namespace tessera::gemm {

cudaError_t run_relu2(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, SquaredRelu>(problem, multiprocessors, stream);
}

}  // namespace tessera::gemm
