#include "train/session/mean_loss.h"

#include <numeric>

namespace tessera {

std::vector<float> host_losses(const Stream& stream, const Tensor& losses) {
  std::vector<float> host(static_cast<size_t>(losses.numel()));
  stream.run(Copy{losses, {host.data(), DType::kF32, losses.shape, Device::kCpu}});
  stream.synchronize();
  return host;
}

double mean_of(const std::vector<float>& losses) {
  return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
}

double mean_loss(const Stream& stream, const Tensor& losses) { return mean_of(host_losses(stream, losses)); }

}  // namespace tessera
