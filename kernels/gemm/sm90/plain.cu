#include "kernels/gemm/sm90/activations.cuh"
#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/launch.cuh"

namespace tessera::gemm {

cudaError_t run_plain(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kPlain, NoActivation>(problem, multiprocessors, stream);
}
cudaError_t run_plain_stored(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kOther, Kind::kPlain, NoActivation>(problem, multiprocessors, stream);
}
cudaError_t run_add(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kAdd, NoActivation>(problem, multiprocessors, stream);
}
cudaError_t run_exp(const Problem& problem, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kExp, NoActivation>(problem, multiprocessors, stream);
}

}  // namespace tessera::gemm
