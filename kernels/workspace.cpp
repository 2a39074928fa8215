#include "kernels/workspace.h"

#include <algorithm>

#include "kernels/backend.h"

namespace tessera {

int64_t workspace_bytes(Device device, int64_t rows, int64_t channels, int64_t features) {
  if (device == Device::kCpu) return cpu::kNormBytes;
  // A norm sums two gradients a channel, and a third where there are biases.
  const int64_t widest = std::max(features, (features > 0 ? 3 : 2) * channels);
  return std::max({cuda::kGemmWorkspaceBytes, cuda::column_partials_bytes(cuda::kMaxSlabs, widest),
                   cuda::embedding_backward_bytes(rows, channels)});
}

}  // namespace tessera
