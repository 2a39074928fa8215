#include "train/launch/process_group.h"

#include <cstring>

#include "train/launch/rendezvous.h"
#include "train/launch/watchdog.h"

namespace tessera {

ProcessGroup::ProcessGroup(std::unique_ptr<Watchdog> watchdog) : watchdog_(std::move(watchdog)) {}
ProcessGroup::~ProcessGroup() = default;

std::unique_ptr<ProcessGroup> ProcessGroup::join(const World& world, const RunIdentity& run,
                                                 double time_limit_seconds) {
  check(time_limit_seconds > 0, "the time limit for the other ranks is {} s; it must be more than 0",
        time_limit_seconds);
  return std::unique_ptr<ProcessGroup>(new ProcessGroup(
      std::make_unique<Watchdog>(world, rendezvous(world, run, time_limit_seconds), time_limit_seconds)));
}

const World& ProcessGroup::world() const { return watchdog_->world(); }

std::vector<std::string> ProcessGroup::exchange(std::string_view mine) { return watchdog_->exchange(mine); }

std::vector<double> ProcessGroup::sum(std::span<const double> mine) {
  const std::vector<std::string> all =
      exchange({reinterpret_cast<const char*>(mine.data()), mine.size_bytes()});
  std::vector<double> total(mine.size()), theirs(mine.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    check(all[rank].size() == mine.size_bytes(),
          "rank {} sums {} numbers and rank {} sums {}; all ranks must sum the same count", world().rank,
          mine.size(), rank, all[rank].size() / sizeof(double));
    std::memcpy(theirs.data(), all[rank].data(), all[rank].size());
    for (size_t i = 0; i < total.size(); ++i) total[i] = rank == 0 ? theirs[i] : total[i] + theirs[i];
  }
  return total;
}

void ProcessGroup::enter_phase(std::string_view name, Timeout timeout) {
  watchdog_->enter_phase(name, timeout);
}
void ProcessGroup::set_health_check(std::function<std::string()> check) {
  watchdog_->set_health_check(std::move(check));
}
void ProcessGroup::fail(std::string_view error) { watchdog_->fail(error); }
void ProcessGroup::finish() { watchdog_->finish(); }

}  // namespace tessera
