#include "train/parallel/peers.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>

namespace tessera {
namespace {

// Tells builds apart: ranks that compute differently would drift apart unseen.
std::string program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return fmt::format("{:016x}", std::hash<std::string>()(bytes));
}

}  // namespace

Peers::Peers(const World& world, const Config& config)
    : world_(world), time_limit_(static_cast<double>(config.train.time_limit)) {
  if (world.size > 1)
    team_ = Team::join(world, {.build = program_hash(), .config = config_lines(config)}, time_limit_);
}

Communicator* Peers::connect(Backend& be) {
  if (!team_) return nullptr;
  communicator_ =
      make_communicator(be, {.rank = world_.rank,
                             .size = world_.size,
                             .exchange = [this](std::string_view mine) { return team_->exchange(mine); },
                             .time_limit_seconds = time_limit_});
  team_->set_poll([this] { return communicator_->failure(); });
  return communicator_.get();
}

std::vector<double> Peers::sum(std::initializer_list<double> mine) {
  return team_ ? team_->sum(std::span(mine.begin(), mine.size())) : std::vector<double>(mine);
}

std::vector<double> Peers::gather(double mine) {
  std::vector<double> all(static_cast<size_t>(size()));
  all[static_cast<size_t>(rank())] = mine;
  return team_ ? team_->sum(all) : all;
}

void Peers::check_same(std::string_view mine, std::string_view what) {
  if (!team_) return;
  const std::vector<std::string> all = team_->exchange(mine);
  for (size_t r = 1; r < all.size(); ++r)
    check(all[r] == all[0], "{}: rank 0 has \"{}\", rank {} has \"{}\"", what, all[0], r, all[r]);
}

void Peers::at(std::string_view what, Pace pace) {
  if (team_) team_->at(what, pace);
}

void Peers::fail(std::string_view message) {
  if (team_) team_->fail(message);
}

void Peers::leave() {
  if (!team_) return;
  team_->leave();
  team_->set_poll({});
  communicator_.reset();
}

}  // namespace tessera
