#include "kernels/products/activations.cuh"
#include "kernels/products/kernels.h"
#include "kernels/products/launch.cuh"

namespace tessera::products {

cudaError_t run_gelu_exact_fp8(const Product& product, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kActivate, ExactGelu, Factors::kE4m3>(product, multiprocessors, stream);
}

}  // namespace tessera::products
