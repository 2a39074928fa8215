#include "kernels/products/activations.cuh"
#include "kernels/products/kernels.h"
#include "kernels/products/launch.cuh"

namespace tessera::products {

cudaError_t run_exp(const Product& product, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kExp, NoActivation>(product, multiprocessors, stream);
}

}  // namespace tessera::products
