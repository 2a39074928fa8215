#include "kernels/timer.h"

#include <chrono>

namespace tessera {
namespace {

class ClockTimer final : public Timer {
 public:
  void start() override { start_ = Clock::now(); }
  void stop() override { stop_ = Clock::now(); }
  double milliseconds() override { return std::chrono::duration<double, std::milli>(stop_ - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_, stop_;
};

}  // namespace

std::unique_ptr<Timer> make_timer(const Stream& stream) {
  if (stream.device() == Device::kCuda) return make_cuda_timer(stream.queue());
  return std::make_unique<ClockTimer>();
}

}  // namespace tessera
