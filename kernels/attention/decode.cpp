#include "kernels/attention/decode.h"

#include <cmath>

namespace tessera {

DecodePlan choose_decode(const DecodeShape& shape, DType dtype, const DeviceTraits& device) {
  return {.shape = shape,
          .dtype = dtype,
          .scale = 1 / std::sqrt(static_cast<float>(shape.head_dim)),
          .arch = device.arch};
}

}  // namespace tessera
