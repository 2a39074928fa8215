#include "train/session/measure_links.h"

#include "kernels/base/clock.h"
#include "train/parallel/mesh.h"
#include "train/session/device.h"

namespace tessera {
namespace {

constexpr int64_t kElements = int64_t{4} << 20;  // fp32, from each rank
constexpr int kRounds = 4;                       // and one before them, which opens connections

double rate_of(Backend& be, Communicator& axis) {
  if (axis.size() == 1) return 0;
  Arena arena = make_arena(be.traits());
  const Tensor whole =
      arena.alloc(MemoryTag::kCommunication, "measured links", DType::kF32, {axis.size() * kElements});
  const Tensor part = whole.rows(axis.rank() * kElements, kElements);
  const auto gather = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) axis.all_gather({.part = part, .whole = whole});
    axis.wait();
    axis.synchronize();
    be.synchronize(be.stream());
  };
  gather(1);
  const Clock::time_point start = Clock::now();
  gather(kRounds);
  const auto sent = static_cast<double>(kRounds * (axis.size() - 1) * static_cast<int64_t>(part.bytes()));
  return sent / seconds_since(start);
}

}  // namespace

LinkRates measure_links(Backend& be, const Mesh& mesh) {
  const double within = rate_of(be, mesh.axis(Axis::kShard));
  return {.within = within, .between = rate_of(be, mesh.axis(Axis::kReplica))};
}

}  // namespace tessera
