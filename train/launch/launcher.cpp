#include "train/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "kernels/base/clock.h"
#include "kernels/base/descriptor.h"
#include "kernels/base/signals.h"
#include "kernels/base/system_error.h"
#include "train/launch/connection.h"
#include "train/launch/peer_failed.h"
#include "train/launch/terminal.h"
#include "train/launch/world.h"

namespace tessera {
namespace {

constexpr double kGraceSeconds = 3;        // for the other ranks to end by themselves after one failed
constexpr size_t kMaxLineBytes = 1 << 16;  // a longer line is printed in pieces

// A handler writes each signal to a pipe, whichever thread the kernel picks for it. A blocked signal would go
// to a library's thread that does not block it, and end the program.
int g_signal_pipe = -1;  // the end to write to; never closed, as a signal may come at any time

void send_to_pipe(int number) {
  const char byte = static_cast<char>(number);
  [[maybe_unused]] const ssize_t written = write(g_signal_pipe, &byte, 1);  // full: the reader has enough
}

void set_nonblocking(const Descriptor& end) { fcntl(end.get(), F_SETFL, O_NONBLOCK); }

// A rank's stdout or stderr: prints its lines with the rank in front.
class OutputPipe {
 public:
  OutputPipe(std::string prefix, int to)
      : prefix_(std::move(prefix)), to_(to), pipe_(make_pipe("the output of a rank")) {
    set_nonblocking(pipe_.read);
  }

  int write_end() const { return pipe_.write.get(); }
  void close_write_end() { pipe_.write.close(); }
  pollfd events() const { return {.fd = pipe_.read.get(), .events = POLLIN, .revents = 0}; }

  // Prints the whole lines that have arrived.
  void forward() {
    char buffer[4096];
    ssize_t count;
    while ((count = read(pipe_.read.get(), buffer, sizeof buffer)) > 0) {
      for (const char letter : std::string_view(buffer, static_cast<size_t>(count))) {
        if (letter != '\n') line_ += letter;
        if (letter == '\n' || line_.size() == kMaxLineBytes) print();
      }
    }
    if (count == 0) pipe_.read.close();  // end of file
  }

  void finish() {
    forward();
    if (!line_.empty()) print();
  }

 private:
  void print() { write_all(to_, fresh_line(to_) + prefix_ + std::exchange(line_, {}) + "\n"); }

  std::string prefix_, line_;
  int to_;
  Pipe pipe_;
};

struct Process {
  pid_t pid = 0;
  bool running = true;
  std::vector<OutputPipe> output;
};

class Launcher {
 public:
  Launcher(int ranks, char** argv) : listening_(listen_at("127.0.0.1", 0, Reach::kThisMachine)) {
    catch_signals();
    try {
      for (int rank = 0; rank < ranks; ++rank) start(rank, ranks, argv);
    } catch (...) {
      kill_all();
      for (const Process& process : ranks_) waitpid(process.pid, nullptr, 0);
      throw;
    }
    listening_.close();  // rank 0 alone holds it: when rank 0 ends, nobody listens
  }

  int run() {
    while (running_ > 0) {
      std::vector<pollfd> events{{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
      for (const Process& process : ranks_)
        for (const OutputPipe& pipe : process.output) events.push_back(pipe.events());
      poll(events.data(), events.size(), 1000);
      for (Process& process : ranks_)
        for (OutputPipe& pipe : process.output) pipe.forward();
      for (char number; read(signals_.get(), &number, 1) > 0;)
        if (number != SIGCHLD) send_all(number);
      reap();
      if (failed_since_ && seconds_since(*failed_since_) > kGraceSeconds) kill_all();
    }
    for (Process& process : ranks_)
      for (OutputPipe& pipe : process.output) pipe.finish();
    report();
    return exit_code();
  }

 private:
  void catch_signals() {
    Pipe pipe = make_pipe("signals");
    set_nonblocking(pipe.read);
    set_nonblocking(pipe.write);
    signals_ = std::move(pipe.read);
    g_signal_pipe = pipe.write.release();
    // Until exec() also in a rank: the launcher then gets its signal.
    constexpr std::array numbers{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD};
    handle_signals(numbers, BlockedCalls::kGoOn, send_to_pipe);
  }

  void start(int rank, int ranks, char** argv) {
    Process process;
    const std::string prefix = fmt::format("rank {}: ", rank);
    process.output.emplace_back(prefix, STDERR_FILENO);
    if (rank != 0) process.output.emplace_back(prefix, STDOUT_FILENO);
    Pipe failure = make_pipe(fmt::format("the start of rank {}", rank));  // errno; exec() closes it
    const pid_t launcher = getpid();
    process.pid = fork();
    check_system(process.pid >= 0, "cannot start rank {} of {}: {}", rank, ranks);
    if (process.pid == 0) {
      set_up_rank(rank, ranks, process, launcher);
      execv("/proc/self/exe", argv);
      const int reason = errno;
      write_all(failure.write.get(), {reinterpret_cast<const char*>(&reason), sizeof reason});
      _exit(127);
    }
    for (OutputPipe& pipe : process.output) pipe.close_write_end();
    ranks_.push_back(std::move(process));
    ++running_;
    failure.write.close();
    int reason = 0;
    if (read(failure.read.get(), &reason, sizeof reason) == sizeof reason)
      fail("cannot start rank {} of {}: this program's file cannot be executed again: {}", rank, ranks,
           system_reason(reason));
  }

  // In the new process, before it runs the program: its outputs and variables.
  void set_up_rank(int rank, int ranks, const Process& process, pid_t launcher) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);       // its files are whole at any time
    if (getppid() != launcher) _exit(127);  // the launcher died before the line above
    dup2(process.output[0].write_end(), STDERR_FILENO);
    if (rank != 0) dup2(process.output[1].write_end(), STDOUT_FILENO);
    const auto set = [](const char* name, auto value) { setenv(name, fmt::format("{}", value).c_str(), 1); };
    set("RANK", rank);
    set("LOCAL_RANK", rank);
    set("WORLD_SIZE", ranks);
    set("LOCAL_WORLD_SIZE", ranks);
    set("MASTER_ADDR", "127.0.0.1");
    set("MASTER_PORT", port_of(listening_));
    set(kLauncherVariable, 1);
    set(kSecretVariable, secret_);
    if (rank == 0) set(kListenVariable, dup(listening_.get()));  // dup: it stays open in the program
    cpu_set_t processors;
    if (sched_getaffinity(0, sizeof processors, &processors) == 0)
      setenv("OMP_NUM_THREADS", fmt::format("{}", std::max(1, CPU_COUNT(&processors) / ranks)).c_str(), 0);
  }

  void send_all(int number) const {
    for (const Process& process : ranks_)
      if (process.running) kill(process.pid, number);
  }
  void kill_all() const { send_all(SIGKILL); }

  // Notes the ranks that have ended.
  void reap() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Process& process = ranks_[rank];
      int status = 0;
      if (!process.running || waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
      process.running = false;
      --running_;
      const bool succeeded = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      const bool peer_failed = WIFEXITED(status) && WEXITSTATUS(status) == kExitPeerFailed;
      if (succeeded && !first_finished_) first_finished_ = rank;
      if (succeeded) continue;
      if (!failed_since_) failed_since_ = Clock::now();
      if (!peer_failed && !first_failure_) first_failure_ = {rank, status};
    }
  }

  int exit_code() const {
    if (!failed_since_) return 0;
    if (!first_failure_) return 1;
    const int status = first_failure_->status;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  // Prints the errors that a rank cannot print itself.
  void report() const {
    if (!failed_since_) return;
    if (!first_failure_ && first_finished_)
      print_error(*first_finished_, "ended before the others, with exit code 0");
    if (!first_failure_ || WIFEXITED(first_failure_->status)) return;
    const int number = WTERMSIG(first_failure_->status);
    const char* name = sigabbrev_np(number);
    print_error(first_failure_->rank,
                fmt::format("was killed by signal {}{}{}", number, name ? fmt::format(" (SIG{})", name) : "",
                            number == SIGKILL ? ", as the system does when memory runs out" : ""));
  }

  void print_error(size_t rank, const std::string& text) const {
    write_all(STDERR_FILENO, fmt::format("{}{}: error: rank {} (pid {}) {}\n", fresh_line(STDERR_FILENO),
                                         program_invocation_short_name, rank, ranks_[rank].pid, text));
  }

  struct Failure {
    size_t rank;
    int status;  // as of waitpid()
  };

  const std::string secret_ = random_secret();
  Descriptor listening_, signals_;
  std::vector<Process> ranks_;
  size_t running_ = 0;
  std::optional<Clock::time_point> failed_since_;
  std::optional<size_t> first_finished_;  // the rank that first exited with 0
  std::optional<Failure> first_failure_;
};

}  // namespace

int launch(int ranks, char** argv) {
  check(ranks > 0, "cannot start {} ranks; start at least one", ranks);
  return Launcher(ranks, argv).run();
}

}  // namespace tessera
