#include "train/launch/watchdog.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "kernels/base/system_error.h"
#include "train/launch/peer_failed.h"
#include "train/launch/terminal.h"

namespace tessera {
namespace {

constexpr double kStallLimits = 24;          // time limits without progress at any rank, until the run ends
constexpr double kShutdownReplySeconds = 2;  // for rank 0 to answer a rank that fails

// The bytes of every rank, each behind its length.
std::string pack(const std::vector<std::string>& all) {
  std::string packed;
  for (const std::string& one : all) {
    const uint64_t bytes = one.size();
    packed.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(one);
  }
  return packed;
}

// Error: the lengths do not add up, or there are not `count` of them.
std::vector<std::string> unpack(std::string_view packed, int count) {
  std::vector<std::string> all;
  while (!packed.empty()) {
    uint64_t bytes = 0;
    check(packed.size() >= sizeof bytes, "an exchange that ends within a length");
    std::memcpy(&bytes, packed.data(), sizeof bytes);
    packed.remove_prefix(sizeof bytes);
    check(bytes <= packed.size(), "an exchange that is cut off");
    all.emplace_back(packed.substr(0, bytes));
    packed.remove_prefix(bytes);
  }
  check(all.size() == static_cast<size_t>(count), "an exchange of {} ranks, not {}", all.size(), count);
  return all;
}

// The main thread may hold any lock or wait forever, and so may the reader of stdout: nothing here waits for
// either. `error`: empty if another rank reports it.
[[noreturn]] void end_process(int code, const std::string& error) {
  std::signal(SIGALRM, SIG_DFL);
  alarm(2);
  if (ftrylockfile(stdout) == 0) fflush_unlocked(stdout);
  const std::string line =
      fmt::format("{}{}: error: {}\n", fresh_line(STDERR_FILENO), program_invocation_short_name, error);
  if (!error.empty() && write(STDERR_FILENO, line.data(), line.size()) < 0) _exit(code);
  _exit(code);
}

}  // namespace

Watchdog::Watchdog(const World& world, std::vector<Peer> peers, double time_limit)
    : world_(world),
      time_limit_(time_limit),
      heartbeat_interval_(std::min(1.0, time_limit / 4)),
      name_(name_of_this_process(world)),
      peers_(std::move(peers)),
      last_received_(peers_.size(), Clock::now()),
      progress_(static_cast<size_t>(world.size)),
      contributions_(static_cast<size_t>(world.size)),
      last_heartbeat_(Clock::now()),
      last_turn_(last_heartbeat_),
      last_health_check_(last_heartbeat_),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  wake();  // messages may have arrived with the last one of the rendezvous
  // Signals are the main thread's: a handler must not run here while the connections are in use.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Watchdog::~Watchdog() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    report_failure("it ended before the run did");
  }
  stop();
}

void Watchdog::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake();
  }
  thread_.join();
  peers_.clear();
}

void Watchdog::wake() const { eventfd_write(wake_.get(), 1); }

std::vector<std::string> Watchdog::exchange(std::string_view mine) {
  const uint64_t most = kMaxMessageBytes / static_cast<uint64_t>(world_.size) - sizeof(uint64_t);
  check(mine.size() <= most, "rank {} gives {} bytes to an exchange of {} ranks; each may give at most {}",
        world_.rank, mine.size(), world_.size, most);
  check(thread_.joinable(), "rank {} calls exchange() after finish()", world_.rank);
  std::unique_lock lock(mutex_);
  set_phase(own_progress().last.phase, Timeout::kLimit);
  if (is_rank_0())
    add_contribution(0, std::string(mine));
  else
    peers_[0].connection.send(MessageKind::kContribution, mine);
  wake();
  exchanged_.wait(lock, [&] { return gathered_.has_value(); });
  return present(std::exchange(gathered_, {}));
}

void Watchdog::enter_phase(std::string_view name, Timeout timeout) {
  const std::lock_guard lock(mutex_);
  set_phase(std::string(name), timeout);
}

void Watchdog::set_phase(std::string name, Timeout timeout) {
  update_progress(world_.rank,
                  {.phases = own_progress().last.phases + 1, .timeout = timeout, .phase = std::move(name)});
}

void Watchdog::update_progress(int rank, const Heartbeat& heartbeat) {
  Progress& progress = progress_[static_cast<size_t>(rank)];
  if (heartbeat.phases == progress.last.phases) return;
  last_progress_ = Clock::now();
  progress = {.last = heartbeat, .behind_since = {}};
}

void Watchdog::set_health_check(std::function<std::string()> check) {
  const std::lock_guard lock(health_check_mutex_);
  health_check_ = std::move(check);
}

void Watchdog::fail(std::string_view error) {
  if (!thread_.joinable()) end_process(1, with_name(error));  // after finish(): no rank depends on this one
  {
    const std::lock_guard lock(mutex_);
    report_failure(error);
    wake();
  }
  while (true) pause();  // the thread ends the process
}

void Watchdog::finish() {
  set_health_check({});
  {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
  }
  exchange({});
  stop();
}

void Watchdog::run() {
  while (true) {
    std::vector<pollfd> watched = events();
    ::poll(watched.data(), watched.size(), static_cast<int>(1000 * heartbeat_interval_));
    eventfd_t wakes;
    eventfd_read(wake_.get(), &wakes);
    {
      const std::lock_guard lock(mutex_);
      forgive_own_pause();
      for (size_t i = 0; i < peers_.size(); ++i) receive_from(i);
      if (seconds_since(last_heartbeat_) >= heartbeat_interval_) send_heartbeats();
      if (end_if_over()) return;
    }
    if (seconds_since(last_health_check_) >= std::min(1.0, time_limit_)) run_health_check();
  }
}

std::vector<pollfd> Watchdog::events() {
  const std::lock_guard lock(mutex_);
  std::vector<pollfd> events{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const Peer& peer : peers_) events.push_back(peer.connection.events());
  return events;
}

// If this process itself was stopped for a while, the silence of the others in that time proves nothing.
void Watchdog::forgive_own_pause() {
  if (seconds_since(last_turn_) > time_limit_ / 2) {
    std::fill(last_received_.begin(), last_received_.end(), Clock::now());
    for (Progress& progress : progress_) progress.behind_since.reset();
    last_progress_ = Clock::now();
  }
  last_turn_ = Clock::now();
}

// True: the thread returns, and the process lives on.
bool Watchdog::end_if_over() {
  if (!failure_.empty() && seconds_since(failed_at_) > kShutdownReplySeconds)
    shutdown_ = {.reporter = world_.rank, .error = failure_};
  const bool finished = stopping_ && finished_;
  if (finished || shutdown_) drain_connections();
  if (finished || (shutdown_ && abandoned_)) return true;
  if (shutdown_ && shutdown_->reporter == world_.rank) end_process(1, shutdown_->error);
  if (shutdown_) end_process(kExitPeerFailed, {});
  return false;
}

void Watchdog::receive_from(size_t index) {
  Connection& connection = peers_[index].connection;
  try {
    connection.flush();
    connection.receive();
    while (const std::optional<Message> message = connection.next()) handle(index, *message);
  } catch (const std::exception& error) {
    shut_down(world_.rank, fmt::format("{} sent a message that cannot be read: {}. Run the same program on "
                                       "every machine",
                                       peers_[index].name, error_text(error)));
  }
  if (connection.ended()) connection_lost(peers_[index]);
}

void Watchdog::handle(size_t index, const Message& message) {
  last_received_[index] = Clock::now();
  const int rank = peers_[index].rank;
  switch (message.kind) {
    case MessageKind::kContribution:
      check(is_rank_0(), "only rank 0 gathers an exchange");
      return add_contribution(rank, message.body);
    case MessageKind::kFailure:
      check(is_rank_0(), "failures are reported to rank 0 alone");
      return shut_down(rank, message.body);
    case MessageKind::kGathered:
      check(!is_rank_0(), "only rank 0 gathers an exchange");
      gathered_ = unpack(message.body, world_.size);
      finished_ = finishing_;
      return exchanged_.notify_all();
    case MessageKind::kShutdown:
      check(!is_rank_0(), "only rank 0 ends the run");
      if (!shutdown_) shutdown_ = decode_shutdown(message.body);
      return;
    case MessageKind::kHeartbeat:
      if (is_rank_0()) update_progress(rank, decode_heartbeat(message.body));
      return;
    default:
      tessera::fail("its kind is {}", static_cast<uint32_t>(message.kind));
  }
}

// At rank 0: when the last contribution has arrived, all ranks get all of them.
void Watchdog::add_contribution(int rank, std::string bytes) {
  contributions_[static_cast<size_t>(rank)] = std::move(bytes);
  if (!std::all_of(contributions_.begin(), contributions_.end(), [](const auto& c) { return c.has_value(); }))
    return;
  gathered_.emplace();
  for (std::optional<std::string>& one : contributions_)
    gathered_->push_back(present(std::exchange(one, {})));
  const std::string packed = peers_.empty() ? std::string() : pack(*gathered_);
  for (Peer& peer : peers_) peer.connection.send(MessageKind::kGathered, packed);
  finished_ = finishing_;
  exchanged_.notify_all();
}

void Watchdog::send_heartbeats() {
  last_heartbeat_ = Clock::now();
  if (finished_ || shutdown_) return;
  const std::string body = is_rank_0() ? std::string() : encode(own_progress().last);
  for (size_t i = 0; i < peers_.size(); ++i) {
    peers_[i].connection.send(MessageKind::kHeartbeat, body);
    if (seconds_since(last_received_[i]) > time_limit_) heartbeat_lost(peers_[i]);
  }
  if (!is_rank_0()) return;
  check_stragglers();
  check_stall();
}

void Watchdog::check_stragglers() {
  const auto first =
      std::max_element(progress_.begin(), progress_.end(),
                       [](const Progress& a, const Progress& b) { return a.last.phases < b.last.phases; });
  for (size_t rank = 0; rank < progress_.size(); ++rank) {
    Progress& progress = progress_[rank];
    if (progress.last.phases == first->last.phases) continue;
    if (!progress.behind_since) progress.behind_since = Clock::now();
    if (progress.last.timeout == Timeout::kNone || seconds_since(*progress.behind_since) <= time_limit_)
      continue;
    shut_down(0, fmt::format("{} has been in `{}` for {:g} s longer than rank {}, which is in `{}`: it hangs "
                             "or is too slow. If it only needs more time, raise train.time_limit",
                             rank == 0 ? name_ : peers_[rank - 1].name, progress.last.phase, time_limit_,
                             first - progress_.begin(), first->last.phase));
  }
}

// All ranks wait in the same phase.
void Watchdog::check_stall() {
  const Heartbeat& own = own_progress().last;
  const bool together = std::all_of(progress_.begin(), progress_.end(), [&](const Progress& progress) {
    return progress.last.phases == own.phases && progress.last.timeout == Timeout::kLimit;
  });
  const double limit = kStallLimits * time_limit_;
  if (!together || seconds_since(last_progress_) <= limit) return;
  shut_down(0, fmt::format("no rank has made progress in `{}` for {:g} s: a device or the network between "
                           "them hangs. If a step only needs more time, raise train.time_limit",
                           own.phase, limit));
}

// The rank that reports the error of one that cannot: rank 0; of rank 0, the first rank left on each machine.
int Watchdog::reporter_for_peers() const {
  return is_rank_0() || world_.rank == 1 || world_.local_rank == 0 ? world_.rank : Shutdown::kNobody;
}

// The connection to a rank has ended, and so has its process.
void Watchdog::connection_lost(const Peer& peer) {
  if (finished_) return;
  if (!failure_.empty()) return shut_down(world_.rank, failure_);  // rank 0 can no longer choose the reporter
  shut_down(world_.own_launcher() ? Shutdown::kNobody : reporter_for_peers(),
            fmt::format("{} is gone: its process was killed or crashed, or its machine is down. See its last "
                        "output and that machine's system log",
                        peer.name));
}

void Watchdog::heartbeat_lost(const Peer& peer) {
  shut_down(
      reporter_for_peers(),
      fmt::format("{} has not answered for {:g} s: its process is stopped, or its machine or the network "
                  "is down",
                  peer.name, time_limit_));
}

void Watchdog::run_health_check() {
  last_health_check_ = Clock::now();
  std::string error;
  {
    const std::lock_guard lock(health_check_mutex_);
    if (health_check_) error = health_check_();
  }
  const std::lock_guard lock(mutex_);
  if (!error.empty() && failure_.empty()) report_failure(error);
}

// Our launcher prefixes what a rank prints with the rank.
std::string Watchdog::with_name(std::string_view error) const {
  return world_.own_launcher() ? std::string(error) : fmt::format("{}: {}", name_, error);
}

void Watchdog::report_failure(std::string_view error) {
  const std::string text = with_name(error);
  if (is_rank_0()) return shut_down(0, text);
  failure_ = text;
  failed_at_ = Clock::now();
  peers_[0].connection.send(MessageKind::kFailure, text);
}

// The first error counts. At a rank other than 0 it is this rank's own view, used only when rank 0 is lost.
void Watchdog::shut_down(int reporter, std::string error) {
  if (shutdown_) return;
  shutdown_ = {.reporter = reporter, .error = std::move(error)};
  if (!is_rank_0()) return;
  const std::string body = encode(*shutdown_);
  for (Peer& peer : peers_) peer.connection.send(MessageKind::kShutdown, body);
}

// What was sent last must arrive: a connection that is closed with unread bytes is reset, and may lose it. So
// rank 0 reads until the others have closed theirs.
void Watchdog::drain_connections() {
  if (!is_rank_0()) return;
  const Clock::time_point start = Clock::now();
  const auto open = [](const Peer& peer) { return !peer.connection.ended(); };
  while (std::any_of(peers_.begin(), peers_.end(), open) && seconds_since(start) < kDrainSeconds) {
    for (Peer& peer : peers_) {
      peer.connection.flush();
      peer.connection.finish_sending();
      peer.connection.receive();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace tessera
