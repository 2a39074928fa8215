#include "kernels/products/activations.cuh"
#include "kernels/products/kernels.h"
#include "kernels/products/launch.cuh"

namespace tessera::products {

cudaError_t run_gelu_slope_fp8(const Product& product, int multiprocessors, cudaStream_t stream) {
  return launch<Major::kSum, Kind::kSlope, TanhGelu, Factors::kE5m2>(product, multiprocessors, stream);
}

}  // namespace tessera::products
