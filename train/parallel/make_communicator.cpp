#include "train/parallel/make_communicator.h"

#include "kernels/base/check.h"
#include "kernels/stream.h"
#include "train/parallel/transports.h"

namespace tessera {
namespace {

// One rank: sums and gathers are copies.
class SingleRank final : public Communicator {
 public:
  explicit SingleRank(Backend& backend) : Communicator(backend.device(), 0, 1), stream_(backend) {}

 private:
  void run(const AllReduce&) override {}
  void run(const ReduceScatter& a) override { copy(a.whole, a.part); }
  void run(const AllGather& a) override { copy(a.part, a.whole); }
  void run(const AllToAll&) override {}
  void copy(const Tensor& from, const Tensor& to) {
    if (from.data != to.data) stream_.run(Copy{from, to});
  }

  Stream stream_;
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(Backend& backend, const Ranks& ranks) {
  if (ranks.size == 1) return std::make_unique<SingleRank>(backend);
  check(ranks.exchange && ranks.time_limit_seconds > 0,
        "communicator: {} ranks need an exchange and a time limit above 0, found a limit of {} s", ranks.size,
        ranks.time_limit_seconds);
  if (backend.device() == Device::kCuda) return make_nccl_communicator(backend, ranks);
  return make_gloo_communicator(ranks);
}

bool can_communicate(Device device, std::string& why_not) {
  return device == Device::kCuda ? nccl_available(why_not) : gloo_available(why_not);
}

}  // namespace tessera
