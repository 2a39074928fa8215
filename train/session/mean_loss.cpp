#include "train/session/mean_loss.h"

#include <numeric>
#include <vector>

namespace tessera {

double mean_loss(const Stream& stream, const Tensor& losses) {
  std::vector<float> host(static_cast<size_t>(losses.numel()));
  stream.run(Copy{losses, {host.data(), DType::kF32, losses.shape, Device::kCpu}});
  stream.synchronize();
  return std::accumulate(host.begin(), host.end(), 0.0) / static_cast<double>(host.size());
}

}  // namespace tessera
