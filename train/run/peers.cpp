#include "train/run/peers.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "train/config/print_config.h"

namespace tessera {
namespace {

// A rank that is gone is known to its neighbours in a collective as early as to the watch, which knows which.
constexpr double kWatchSpeaksFirst = 3;  // seconds
// Of a collective, whose other ranks may wait while rank 0 writes to a disk. Who hangs is known before.
constexpr double kCollectiveSeconds = 600;

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
                             .time_limit_seconds = std::max(kCollectiveSeconds, time_limit_)});
  team_->set_poll([this] { return communication_failure(); });
  return communicator_.get();
}

std::string Peers::communication_failure() {
  const std::string why = communicator_->failure();
  if (!why.empty() && !failed_at_) failed_at_ = Clock::now();
  const bool long_ago =
      failed_at_ && std::chrono::duration<double>(Clock::now() - *failed_at_).count() > kWatchSpeaksFirst;
  return long_ago ? why : "";
}

std::vector<double> Peers::sum(const std::vector<double>& mine) { return team_ ? team_->sum(mine) : mine; }

std::vector<double> Peers::gather(double mine) {
  std::vector<double> all(static_cast<size_t>(size()));
  all[static_cast<size_t>(rank())] = mine;
  return team_ ? team_->sum(all) : all;
}

MemoryLimit Peers::memory_limit(Device device) {
  MemoryLimit limit = present_memory(device, size()).shared_by(device, world_.local_size);
  const auto least = [&](int64_t mine) {
    const std::vector<double> all = gather(static_cast<double>(mine));
    return static_cast<int64_t>(*std::min_element(all.begin(), all.end()));
  };
  limit.bytes = least(limit.bytes);
  limit.total = least(limit.total);
  return limit;
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

void Peers::guard(const std::function<void()>& body) {
  if (!team_) return body();
  try {
    body();
  } catch (const CommunicationError& error) {
    std::this_thread::sleep_for(std::chrono::duration<double>(kWatchSpeaksFirst));
    team_->fail(error.what());
  } catch (const std::exception& error) {
    team_->fail(error.what());
  }
}

void Peers::leave() {
  if (!team_) return;
  team_->leave();
  communicator_.reset();
}

}  // namespace tessera
