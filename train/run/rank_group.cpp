#include "train/run/rank_group.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "kernels/base/checksum.h"
#include "kernels/base/system_error.h"
#include "train/config/print_config.h"

namespace tessera {
namespace {

// When a rank is lost, its neighbors in a collective see an error as early as the watchdog, which knows the
// rank: it reports first.
constexpr double kWatchdogFirstSeconds = 3;
// For a collective: the other ranks may wait in one while rank 0 writes to a disk. The watchdog finds a rank
// that hangs long before.
constexpr double kCollectiveSeconds = 600;

// Tells builds apart: ranks that compute differently would drift apart unseen.
std::string program_hash() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  return fmt::format("{:016x}", std::hash<std::string>()(bytes));
}

}  // namespace

RankGroup::RankGroup(const World& world, const Config& config)
    : world_(world),
      mesh_shape_{.data = world.size / config.parallel.context, .context = config.parallel.context},
      time_limit_(static_cast<double>(config.train.time_limit)) {
  if (world.size > 1)
    group_ =
        ProcessGroup::join(world, {.build = program_hash(), .config = config_lines(config)}, time_limit_);
}

std::string RankGroup::machine() const {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

bool RankGroup::on_one_machine() { return sum({world_.local_size < world_.size ? 1.0 : 0.0})[0] == 0; }

int64_t RankGroup::nodes() {
  const bool in_order = world_.rank % world_.local_size == world_.local_rank;
  const std::vector<double> sizes = gather(in_order ? world_.local_size : 0);
  const bool equal = std::ranges::all_of(sizes, [&](double each) { return each == sizes[0]; });
  return equal && in_order && world_.size % world_.local_size == 0 ? world_.size / world_.local_size : 1;
}

const Mesh& RankGroup::connect(Backend& be, const MeshShape& shape) {
  Ranks ranks{.rank = world_.rank, .size = world_.size};
  if (group_) {
    ranks.exchange = [this](std::string_view mine) { return group_->exchange(mine); };
    ranks.time_limit_seconds = std::max(kCollectiveSeconds, time_limit_);
    if (!std::exchange(found_network_, true)) network_ = find_network(ranks, be.device());
    ranks.interface = network_.interface;
  }
  disconnect();
  mesh_ = std::make_unique<Mesh>(be, shape, ranks);
  if (group_) group_->set_health_check([this] { return communication_failure(); });
  return *mesh_;
}

void RankGroup::disconnect() {
  if (group_) group_->set_health_check({});
  mesh_.reset();
}

std::string RankGroup::communication_failure() {
  const std::string why = mesh_->failure();
  if (!why.empty() && !failed_at_) failed_at_ = Clock::now();
  return failed_at_ && seconds_since(*failed_at_) > kWatchdogFirstSeconds ? why : "";
}

std::vector<double> RankGroup::sum(const std::vector<double>& mine) {
  return group_ ? group_->sum(mine) : mine;
}

std::vector<double> RankGroup::gather(double mine) {
  std::vector<double> all(static_cast<size_t>(size()));
  all[static_cast<size_t>(rank())] = mine;
  return sum(all);
}

MemoryLimit RankGroup::memory_limit(Device device) {
  MemoryLimit limit = present_memory(device, size()).shared_by(device, world_.local_size);
  if (device == Device::kCuda) limit.pinned = pinnable_memory(world_.local_size);
  const auto least = [&](int64_t mine) {
    const std::vector<double> all = gather(static_cast<double>(mine));
    return static_cast<int64_t>(*std::min_element(all.begin(), all.end()));
  };
  limit.bytes = least(limit.bytes);
  limit.total = least(limit.total);
  limit.pinned = least(limit.pinned);
  const std::vector<std::string> others = exchange(limit.others);
  limit.others.clear();
  for (size_t r = 0; r < others.size(); ++r)
    if (!others[r].empty())
      limit.others += (limit.others.empty() ? "" : "; ") +
                      (size() > 1 ? fmt::format("rank {}: {}", r, others[r]) : others[r]);
  return limit;
}

void RankGroup::check_same(std::string_view mine, std::string_view what) {
  const std::vector<std::string> all = exchange(mine);
  for (size_t r = 1; r < all.size(); ++r)
    check(all[r] == all[0], "{}: rank 0 has \"{}\", rank {} has \"{}\"", what, all[0], r, all[r]);
}

void RankGroup::check_same_lines(std::string_view mine, std::string_view what) {
  const std::vector<std::string> sums = exchange(checksum_of(std::as_bytes(std::span(mine))));
  if (std::ranges::count(sums, sums[0]) == std::ssize(sums)) return;
  const std::vector<std::string> all = exchange(mine), machines = exchange(machine());
  const auto other = static_cast<size_t>(
      std::ranges::find_if(sums, [&](const std::string& one) { return one != sums[0]; }) - sums.begin());
  std::string_view first = all[0], second = all[other];
  const auto take = [](std::string_view& lines) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    return line;
  };
  std::string_view ours, theirs;
  do ours = take(first), theirs = take(second);
  while (ours == theirs);
  fail("{}: rank 0 on {} has \"{}\", rank {} on {} has \"{}\"", what, machines[0], ours, other,
       machines[other], theirs);
}

std::vector<std::string> RankGroup::exchange(std::string_view mine) {
  return group_ ? group_->exchange(mine) : std::vector<std::string>{std::string(mine)};
}

std::string RankGroup::of_rank_0(std::string_view mine) { return exchange(is_rank_0() ? mine : "").front(); }

void RankGroup::enter_phase(std::string_view name, Timeout timeout) {
  if (group_) group_->enter_phase(name, timeout);
}

void RankGroup::guard(const std::function<void()>& body) {
  if (!group_) return body();
  try {
    body();
  } catch (const CommunicationError& error) {
    std::this_thread::sleep_for(std::chrono::duration<double>(kWatchdogFirstSeconds));
    group_->fail(error.what());
  } catch (const std::exception& error) {
    group_->fail(error_text(error));
  }
}

void RankGroup::finish() {
  if (group_) group_->finish();
  mesh_.reset();
}

}  // namespace tessera
