#include "train/bench/copy_bandwidth.h"

#include <algorithm>
#include <cmath>

#include "kernels/timer.h"

namespace tessera {

double copy_bandwidth(const Stream& stream, Arena& arena) {
  Arena::Scope scope(arena);
  const int64_t elements = stream.device() == Device::kCuda ? int64_t{256} << 20 : int64_t{32} << 20;
  const Tensor from = arena.alloc(MemoryTag::kData, "copied", DType::kF32, {elements}),
               to = arena.alloc(MemoryTag::kData, "copy", DType::kF32, {elements});
  stream.run(FillZero{from});
  const std::unique_ptr<Timer> timer = make_timer(stream);
  double best = INFINITY;
  for (int i = 0; i < 10; ++i) {
    timer->start();
    stream.run(Copy{from, to});
    timer->stop();
    best = std::min(best, timer->milliseconds());
  }
  return 2e3 * static_cast<double>(from.bytes()) / best;
}

}  // namespace tessera
