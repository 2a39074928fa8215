#include "train/launch/process_group.h"

#include <cstring>

#include "train/launch/watchdog.h"

namespace tessera {

Team::Team(std::unique_ptr<Watch> watch) : watch_(std::move(watch)) {}
Team::~Team() = default;

std::unique_ptr<Team> Team::join(const World& world, const Introduction& introduction,
                                 double time_limit_seconds) {
  check(time_limit_seconds > 0, "the time limit for the other ranks is {} s; it must be more than 0",
        time_limit_seconds);
  return std::unique_ptr<Team>(new Team(
      std::make_unique<Watch>(world, meet(world, introduction, time_limit_seconds), time_limit_seconds)));
}

const World& Team::world() const { return watch_->world(); }

std::vector<std::string> Team::exchange(std::string_view mine) { return watch_->exchange(mine); }

std::vector<double> Team::sum(std::span<const double> mine) {
  const std::vector<std::string> all =
      exchange({reinterpret_cast<const char*>(mine.data()), mine.size_bytes()});
  std::vector<double> total(mine.size()), theirs(mine.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    check(all[rank].size() == mine.size_bytes(),
          "rank {} sums {} numbers and rank {} {}; all must sum as many", world().rank, mine.size(), rank,
          all[rank].size() / sizeof(double));
    std::memcpy(theirs.data(), all[rank].data(), all[rank].size());
    for (size_t i = 0; i < total.size(); ++i) total[i] = rank == 0 ? theirs[i] : total[i] + theirs[i];
  }
  return total;
}

void Team::at(std::string_view what, Pace pace) { watch_->at(what, pace); }
void Team::set_poll(std::function<std::string()> poll) { watch_->set_poll(std::move(poll)); }
void Team::fail(std::string_view message) { watch_->fail(message); }
void Team::leave() { watch_->leave(); }

}  // namespace tessera
