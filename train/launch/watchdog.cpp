#include "train/launch/watchdog.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "train/launch/terminal.h"

namespace tessera {
namespace {

constexpr double kStandstillLimits = 24;  // limits without progress anywhere, after which the run ends
constexpr double kVerdictSeconds = 2;     // for rank 0 to answer a rank that fails

// The bytes of every rank, each behind its length.
std::string pack(const std::vector<std::string>& all) {
  std::string packed;
  for (const std::string& one : all) {
    const uint64_t bytes = one.size();
    packed.append(reinterpret_cast<const char*>(&bytes), sizeof bytes).append(one);
  }
  return packed;
}

std::vector<std::string> unpack(std::string_view packed) {
  std::vector<std::string> all;
  while (!packed.empty()) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, packed.data(), sizeof bytes);
    all.emplace_back(packed.substr(sizeof bytes, bytes));
    packed.remove_prefix(sizeof bytes + bytes);
  }
  return all;
}

// The main thread may hold any lock, or wait for ever, as may whoever reads stdout: nothing here waits for
// them. `error`: empty where another rank has said it.
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

Team::Watch::Watch(const World& world, std::vector<Member> members, double time_limit)
    : world_(world),
      limit_(time_limit),
      beat_(std::min(1.0, time_limit / 4)),
      name_(name_of_this_process(world)),
      members_(std::move(members)),
      heard_(members_.size(), Clock::now()),
      places_(static_cast<size_t>(world.size)),
      parts_(static_cast<size_t>(world.size)),
      last_beat_(Clock::now()),
      last_turn_(last_beat_),
      last_poll_(last_beat_),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  wake();  // something may have come with the last message of the meeting
  // Signals are the main thread's: a handler must not run here while the connections are in use.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Team::Watch::~Watch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    fail_as_this_rank("it ended before the run did");
  }
  stop();
}

void Team::Watch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake();
  }
  thread_.join();
  members_.clear();
}

void Team::Watch::wake() const { eventfd_write(wake_.get(), 1); }

std::vector<std::string> Team::Watch::exchange(std::string_view mine) {
  const uint64_t most = kMostMessageBytes / static_cast<uint64_t>(world_.size) - sizeof(uint64_t);
  check(mine.size() <= most, "rank {} gives {} bytes to an exchange of {} ranks; at most {} go", world_.rank,
        mine.size(), world_.size, most);
  check(thread_.joinable(), "rank {} exchanges after leave()", world_.rank);
  std::unique_lock lock(mutex_);
  come_to(here().what, Pace::kTogether);
  if (rank_0())
    take_part(0, std::string(mine));
  else
    members_[0].connection.send(MessageKind::kPart, mine);
  wake();
  changed_.wait(lock, [&] { return result_.has_value(); });
  return *std::exchange(result_, {});
}

void Team::Watch::at(std::string_view what, Pace pace) {
  const std::lock_guard lock(mutex_);
  come_to(std::string(what), pace);
}

void Team::Watch::come_to(std::string what, Pace pace) {
  moved_ = Clock::now();
  here() = {.progress = here().progress + 1, .pace = pace, .what = std::move(what), .behind_since = {}};
}

void Team::Watch::set_poll(std::function<std::string()> poll) {
  const std::lock_guard lock(poll_mutex_);
  poll_ = std::move(poll);
}

void Team::Watch::fail(std::string_view message) {
  if (!thread_.joinable()) end_process(1, as_this_rank(message));  // after leave(): nobody depends on it
  {
    const std::lock_guard lock(mutex_);
    fail_as_this_rank(message);
    wake();
  }
  while (true) pause();  // the thread ends the process
}

void Team::Watch::leave() {
  set_poll({});
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  exchange({});
  stop();
}

void Team::Watch::run() {
  std::vector<pollfd> events;
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      events.assign(1, {.fd = wake_.get(), .events = POLLIN, .revents = 0});
      for (const Member& member : members_) events.push_back(member.connection.events());
    }
    ::poll(events.data(), events.size(), static_cast<int>(1000 * beat_));
    eventfd_t wakes;
    eventfd_read(wake_.get(), &wakes);
    {
      const std::lock_guard lock(mutex_);
      // This process itself was stopped for a while: what it did not hear then proves nothing.
      if (seconds_since(last_turn_) > limit_ / 2) {
        std::fill(heard_.begin(), heard_.end(), Clock::now());
        for (Place& place : places_) place.behind_since.reset();
        moved_ = Clock::now();
      }
      last_turn_ = Clock::now();
      for (size_t i = 0; i < members_.size(); ++i) hear(i);
      if (seconds_since(last_beat_) >= beat_) beat();
      if (!failure_.empty() && seconds_since(failed_at_) > kVerdictSeconds) ending_ = {world_.rank, failure_};
      const bool left = stopping_ && left_;
      if (left || ending_) say_goodbye();
      if (left || (ending_ && abandoned_)) return;
      if (ending_ && ending_->speaker == world_.rank) end_process(1, ending_->text);
      if (ending_) end_process(kEndedWithOthers, {});
    }
    if (seconds_since(last_poll_) >= std::min(1.0, limit_)) ask_poll();
  }
}

void Team::Watch::hear(size_t index) {
  Connection& connection = members_[index].connection;
  connection.flush();
  connection.receive();
  while (const std::optional<Message> message = connection.next()) take(index, *message);
  if (connection.ended()) lost(members_[index]);
}

void Team::Watch::take(size_t index, const Message& message) {
  heard_[index] = Clock::now();
  const int rank = members_[index].rank;
  switch (message.kind) {
    case MessageKind::kPart:
      return take_part(rank, message.body);
    case MessageKind::kFailed:
      return decide(rank, message.body);
    case MessageKind::kAll:
      result_ = unpack(message.body);
      left_ = leaving_;
      return changed_.notify_all();
    case MessageKind::kEnd: {
      const Json json = Json::parse(message.body);
      if (!ending_) ending_ = {json.at("speaker"), json.at("text")};
      return;
    }
    case MessageKind::kState: {
      if (!rank_0()) return;
      const Json json = Json::parse(message.body);
      Place& place = places_[static_cast<size_t>(rank)];
      if (json.at("progress") == place.progress) return;
      moved_ = Clock::now();
      place = {.progress = json.at("progress"),
               .pace = json.at("alone") ? Pace::kAlone : Pace::kTogether,
               .what = json.at("what"),
               .behind_since = {}};
      return;
    }
    default:
      decide(world_.rank, fmt::format("{} sent what has no meaning here", members_[index].name));
  }
}

// At rank 0: when the last part has come, everyone gets all of them.
void Team::Watch::take_part(int rank, std::string part) {
  parts_[static_cast<size_t>(rank)] = std::move(part);
  if (!std::all_of(parts_.begin(), parts_.end(), [](const auto& one) { return one.has_value(); })) return;
  result_.emplace();
  for (std::optional<std::string>& one : parts_) result_->push_back(*std::exchange(one, {}));
  const std::string packed = members_.empty() ? std::string() : pack(*result_);
  for (Member& member : members_) member.connection.send(MessageKind::kAll, packed);
  left_ = leaving_;
  changed_.notify_all();
}

void Team::Watch::beat() {
  last_beat_ = Clock::now();
  if (left_ || ending_) return;
  const std::string state = rank_0() ? std::string()
                                     : dump({{"progress", here().progress},
                                             {"alone", here().pace == Pace::kAlone},
                                             {"what", here().what}});
  for (size_t i = 0; i < members_.size(); ++i) {
    members_[i].connection.send(MessageKind::kState, state);
    if (seconds_since(heard_[i]) > limit_) silent(members_[i]);
  }
  if (rank_0()) look_for_laggards();
}

void Team::Watch::look_for_laggards() {
  const auto first = std::max_element(places_.begin(), places_.end(),
                                      [](const Place& a, const Place& b) { return a.progress < b.progress; });
  for (size_t rank = 0; rank < places_.size(); ++rank) {
    Place& place = places_[rank];
    if (place.progress == first->progress) continue;
    if (!place.behind_since) place.behind_since = Clock::now();
    if (place.pace == Pace::kAlone || seconds_since(*place.behind_since) <= limit_) continue;
    decide(0, fmt::format(
                  "{} has been at `{}` for {:g} s longer than rank {}, which is at `{}`: it hangs, or it is "
                  "so much slower. If it only needs longer, raise the time limit",
                  rank == 0 ? name_ : members_[rank - 1].name, place.what, limit_, first - places_.begin(),
                  first->what));
  }
  const bool together = std::all_of(places_.begin(), places_.end(), [&](const Place& place) {
    return place.progress == first->progress && place.pace == Pace::kTogether;
  });
  const double standstill = kStandstillLimits * limit_;
  if (together && seconds_since(moved_) > standstill)
    decide(0,
           fmt::format("no rank has got on from `{}` for {:g} s: a device or the network between them hangs. "
                       "If a step only needs longer, raise the time limit",
                       first->what, standstill));
}

// Who tells of a rank that cannot speak itself: rank 0; of rank 0, the first rank that is left on each
// machine.
int Team::Watch::witness() const {
  return rank_0() || world_.rank == 1 || world_.local_rank == 0 ? world_.rank : kNobody;
}

// The connection to a rank has ended, and so has its process.
void Team::Watch::lost(const Member& member) {
  if (left_) return;
  if (!failure_.empty()) return decide(world_.rank, failure_);  // rank 0 cannot say any more who speaks
  decide(world_.own_launcher() ? kNobody : witness(),
         fmt::format(
             "{} is gone: its process was killed or crashed, or its machine is down. Look at what it printed "
             "last, and at that machine's log",
             member.name));
}

void Team::Watch::silent(const Member& member) {
  decide(witness(),
         fmt::format(
             "{} has not answered for {:g} s: its process is stopped, or its machine or the network is down",
             member.name, limit_));
}

void Team::Watch::ask_poll() {
  last_poll_ = Clock::now();
  std::string text;
  {
    const std::lock_guard lock(poll_mutex_);
    if (poll_) text = poll_();
  }
  const std::lock_guard lock(mutex_);
  if (!text.empty() && failure_.empty()) fail_as_this_rank(text);
}

// Our launcher puts the rank in front of what it prints.
std::string Team::Watch::as_this_rank(std::string_view message) const {
  return world_.own_launcher() ? std::string(message) : fmt::format("{}: {}", name_, message);
}

void Team::Watch::fail_as_this_rank(std::string_view message) {
  const std::string text = as_this_rank(message);
  if (rank_0()) return decide(0, text);
  failure_ = text;
  failed_at_ = Clock::now();
  members_[0].connection.send(MessageKind::kFailed, text);
}

// The first cause counts. Elsewhere than at rank 0 it is this rank's own view, which is asked only when rank
// 0 is lost.
void Team::Watch::decide(int speaker, std::string text) {
  if (ending_) return;
  ending_ = {speaker, std::move(text)};
  if (!rank_0()) return;
  const std::string body = dump({{"speaker", ending_->speaker}, {"text", ending_->text}});
  for (Member& member : members_) member.connection.send(MessageKind::kEnd, body);
}

// What was sent last must arrive: a connection that is closed with unread bytes is reset, and may lose it. So
// rank 0 reads until the others have closed theirs.
void Team::Watch::say_goodbye() {
  if (!rank_0()) return;
  const Clock::time_point start = Clock::now();
  const auto open = [](const Member& member) { return !member.connection.ended(); };
  while (std::any_of(members_.begin(), members_.end(), open) && seconds_since(start) < kFarewellSeconds) {
    for (Member& member : members_) {
      member.connection.flush();
      member.connection.finish_sending();
      member.connection.receive();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

}  // namespace tessera
