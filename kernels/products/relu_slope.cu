#include "kernels/products/activations.cuh"
#include "kernels/products/kernels.h"
#include "kernels/products/launch.cuh"

namespace tessera::products {

cudaError_t run_relu_slope(const Product& product, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kOther, Kind::kSlope, Relu>(product, multiprocessors, stream);
}

}  // namespace tessera::products
