#include "train/session/mean_loss.h"

#include <numeric>

namespace tessera {

std::vector<float> host_losses(const Stream& stream, const Tensor& losses) {
  std::vector<float> host(static_cast<size_t>(losses.numel()));
  stream.run(Copy{losses, {host.data(), DType::kF32, losses.shape, Device::kCpu}});
  stream.synchronize();
  return host;
}

double mean_loss(std::span<const float> losses, double counted) {
  return counted > 0 ? std::accumulate(losses.begin(), losses.end(), 0.0) / counted : 0;
}

}  // namespace tessera
