#include "train/run/metrics_command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/start_program.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

constexpr const char* kWhat = "the program of train.metrics_command";

}  // namespace

MetricsCommand::MetricsCommand(const std::string& command, std::filesystem::path output)
    : output_(std::move(output)) {
  Pipe pipe = make_pipe("train.metrics_command");
  try {
    program_ =
        start_program({.arguments = {"/bin/sh", "-c", command}, .output = output_, .input = pipe.read.get()});
  } catch (const Error& error) {
    fail("train.metrics_command={}: {}", command, error.what());
  }
  to_ = std::move(pipe.write);
  check_system(fcntl(to_.get(), F_SETFL, O_NONBLOCK) == 0, "train.metrics_command: {}");
  thread_ = std::thread([this] { work(); });
}

MetricsCommand::~MetricsCommand() { finish(); }

void MetricsCommand::write(const std::string& line) {
  const std::lock_guard lock(mutex_);
  if (closed_ || ends_) return;
  const auto size = static_cast<int64_t>(line.size());
  if (bytes_ + size > kMostBytes)
    return tell(
        fmt::format("{} does not read its input: {} MiB of lines wait, and what does not fit is left "
                    "out. The run goes on",
                    kWhat, kMostBytes >> 20));
  lines_.push_back(line), bytes_ += size;
  changed_.notify_one();
}

std::string MetricsCommand::take_trouble() {
  const std::lock_guard lock(mutex_);
  return std::exchange(trouble_, "");
}

void MetricsCommand::tell(std::string trouble) {
  if (!std::exchange(told_, true)) trouble_ = std::move(trouble);
}

void MetricsCommand::work() {
  // Signals are for the thread that runs the training; a write to a pipe without a reader fails with EPIPE.
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !lines_.empty(); });
    if (lines_.empty()) return;
    const std::string line = std::move(lines_.front());
    lines_.pop_front(), bytes_ -= static_cast<int64_t>(line.size());
    lock.unlock();
    const bool sent = send(line);
    lock.lock();
    if (sent) continue;
    closed_ = true, bytes_ = 0;
    lines_.clear();
    return;
  }
}

bool MetricsCommand::send(const std::string& line) {
  constexpr int kMilliseconds = 100;  // after which a thread that waits looks whether it should end
  for (size_t done = 0; done < line.size();) {
    const ssize_t sent = ::write(to_.get(), line.data() + done, line.size() - done);
    if (sent > 0) {
      done += static_cast<size_t>(sent);
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
      const std::string end = end_of_program();
      const std::lock_guard lock(mutex_);
      tell(fmt::format("{} {} and gets no more lines. The run goes on. What it printed: {}", kWhat,
                       end.empty() ? "has closed its input" : end, output_.string()));
      return false;
    }
    pollfd event{.fd = to_.get(), .events = POLLOUT, .revents = 0};
    poll(&event, 1, kMilliseconds);
    const std::lock_guard lock(mutex_);
    if (!ends_ || Clock::now() < last_) continue;
    tell(
        fmt::format("{} did not read the last lines within {:.0f} s; they are left out", kWhat, kEndSeconds));
    return false;
  }
  return true;
}

// A pipe is closed a moment before its program has ended.
std::string MetricsCommand::end_of_program() {
  constexpr double kMoment = 1;  // seconds
  int status = 0;
  for (const Clock::time_point start = Clock::now(); program_ != 0;) {
    if (waitpid(program_, &status, WNOHANG) == program_) {
      program_ = 0;
      return how_it_ended(status);
    }
    if (seconds_since(start) > kMoment) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return "";
}

void MetricsCommand::finish() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ends_ = true, last_ = deadline_in(kEndSeconds);
    changed_.notify_one();
  }
  thread_.join();
  to_.close();
  std::string end;
  do end = end_of_program();
  while (end.empty() && program_ != 0 && Clock::now() < last_);
  const std::lock_guard lock(mutex_);
  if (program_ != 0)
    tell(fmt::format("{} still runs {:.0f} s after the last line, and is left alone", kWhat, kEndSeconds));
  else if (!end.empty() && end != "ended with exit code 0")
    tell(fmt::format("{} {}. What it printed: {}", kWhat, end, output_.string()));
}

}  // namespace tessera
