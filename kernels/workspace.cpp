#include "kernels/workspace.h"

#include <algorithm>

#include "kernels/backend.h"

namespace tessera {

int64_t workspace_bytes(Device device, int64_t rows, int64_t channels, int64_t features) {
  if (device == Device::kCpu) return cpu::kNormBytes;
  const int64_t widest = std::max(features, 2 * channels);  // a norm has two gradients a channel
  return std::max({cuda::kGemmWorkspaceBytes, cuda::column_partials_bytes(cuda::kMaxSlabs, widest),
                   cuda::embedding_backward_bytes(rows, channels)});
}

}  // namespace tessera
