#include "train/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "train/launch/connection.h"
#include "train/launch/rendezvous.h"
#include "train/launch/terminal.h"

namespace tessera {
namespace {

constexpr double kGraceSeconds = 3;       // for the others to end by themselves after a rank ended badly
constexpr size_t kLongestLine = 1 << 16;  // bytes; a longer one comes out in pieces

// Signals come through a pipe that a handler writes to, whichever thread the kernel picks for it. Blocked
// ones would go to a thread of a library's that does not block them, and end the program.
int g_signals = -1;  // the writing end; it stays open, as a signal may come at any time

void on_signal(int number) {
  const int before = errno;
  const char byte = static_cast<char>(number);
  [[maybe_unused]] const ssize_t written = write(g_signals, &byte, 1);  // full: enough is waiting to be read
  errno = before;
}

// The reading end of a rank's output.
class LinePipe {
 public:
  LinePipe(std::string prefix, int to) : prefix_(std::move(prefix)), to_(to) {
    int ends[2];
    check(pipe2(ends, O_CLOEXEC) == 0, "cannot make a pipe for the output of a rank: {}",
          std::strerror(errno));
    read_ = FileDescriptor(ends[0]);
    write_ = FileDescriptor(ends[1]);
    fcntl(read_.get(), F_SETFL, O_NONBLOCK);
  }

  int writing_end() const { return write_.get(); }
  void close_writing_end() { write_ = FileDescriptor(); }
  pollfd events() const { return {.fd = read_.get(), .events = POLLIN, .revents = 0}; }

  void pump() {
    char buffer[4096];
    ssize_t count;
    while ((count = read(read_.get(), buffer, sizeof buffer)) > 0) {
      for (const char letter : std::string_view(buffer, static_cast<size_t>(count))) {
        if (letter != '\n') line_ += letter;
        if (letter == '\n' || line_.size() == kLongestLine) put();
      }
    }
    if (count == 0) read_ = FileDescriptor();  // its end
  }

  void finish() {
    pump();
    if (!line_.empty()) put();
  }

 private:
  void put() { write_all(to_, fresh_line(to_) + prefix_ + std::exchange(line_, {}) + "\n"); }

  std::string prefix_, line_;
  int to_;
  FileDescriptor read_, write_;
};

struct Process {
  pid_t pid = 0;
  bool runs = true;
  std::vector<LinePipe> output;
};

class Launcher {
 public:
  Launcher(int ranks, char** argv) : listening_(listen_at("127.0.0.1", 0, Reach::kThisMachine)) {
    int ends[2];
    check(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "cannot make a pipe for signals: {}",
          std::strerror(errno));
    signals_ = FileDescriptor(ends[0]);
    g_signals = ends[1];
    struct sigaction action{};
    action.sa_handler = on_signal;  // until exec(), also in a rank: the launcher then hears of its signal
    action.sa_flags = SA_RESTART;
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
      struct sigaction before{};
      sigaction(number, nullptr, &before);
      if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);  // nohup stays nohup
    }
    try {
      for (int rank = 0; rank < ranks; ++rank) start(rank, ranks, argv);
    } catch (...) {
      kill_all();
      for (const Process& process : ranks_) waitpid(process.pid, nullptr, 0);
      throw;
    }
    listening_ = FileDescriptor();  // rank 0 alone holds it: when rank 0 ends, nobody listens
  }

  int run() {
    while (running_ > 0) {
      std::vector<pollfd> events{{.fd = signals_.get(), .events = POLLIN, .revents = 0}};
      for (const Process& process : ranks_)
        for (const LinePipe& pipe : process.output) events.push_back(pipe.events());
      poll(events.data(), events.size(), 1000);
      for (Process& process : ranks_)
        for (LinePipe& pipe : process.output) pipe.pump();
      for (char number; read(signals_.get(), &number, 1) > 0;)
        if (number != SIGCHLD) send_all(number);
      collect();
      if (bad_since_ && seconds_since(*bad_since_) > kGraceSeconds) kill_all();
    }
    for (Process& process : ranks_)
      for (LinePipe& pipe : process.output) pipe.finish();
    return verdict();
  }

 private:
  void start(int rank, int ranks, char** argv) {
    Process process;
    const std::string prefix = fmt::format("rank {}: ", rank);
    process.output.emplace_back(prefix, STDERR_FILENO);
    if (rank != 0) process.output.emplace_back(prefix, STDOUT_FILENO);
    int failure[2];  // what kept the rank from starting, as errno; closed by a start
    check(pipe2(failure, O_CLOEXEC) == 0, "cannot make a pipe for rank {}: {}", rank, std::strerror(errno));
    const FileDescriptor failure_read(failure[0]);
    FileDescriptor failure_write(failure[1]);
    const pid_t launcher = getpid();
    process.pid = fork();
    check(process.pid >= 0, "cannot start rank {} of {}: {}", rank, ranks, std::strerror(errno));
    if (process.pid == 0) {
      become(rank, ranks, process, launcher);
      execv("/proc/self/exe", argv);
      const int reason = errno;
      write_all(failure_write.get(), {reinterpret_cast<const char*>(&reason), sizeof reason});
      _exit(127);
    }
    for (LinePipe& pipe : process.output) pipe.close_writing_end();
    ranks_.push_back(std::move(process));
    ++running_;
    failure_write = FileDescriptor();
    int reason = 0;
    if (read(failure_read.get(), &reason, sizeof reason) == sizeof reason)
      fail("cannot start rank {} of {}: this program's file cannot be run again: {}", rank, ranks,
           std::strerror(reason));
  }

  // In the new process: all that is a rank's own, before it runs the program.
  void become(int rank, int ranks, const Process& process, pid_t launcher) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);       // what the program leaves behind is whole at any time
    if (getppid() != launcher) _exit(127);  // it died before the line above
    dup2(process.output[0].writing_end(), STDERR_FILENO);
    if (rank != 0) dup2(process.output[1].writing_end(), STDOUT_FILENO);
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
      if (process.runs) kill(process.pid, number);
  }
  void kill_all() const { send_all(SIGKILL); }

  void collect() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      Process& process = ranks_[rank];
      int status = 0;
      if (!process.runs || waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
      process.runs = false;
      --running_;
      const bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
      const bool with_others = WIFEXITED(status) && WEXITSTATUS(status) == kEndedWithOthers;
      if (well && !first_out_) first_out_ = rank;
      if (well) continue;
      if (!bad_since_) bad_since_ = Clock::now();
      if (!with_others && !cause_) cause_ = {rank, status};
    }
  }

  // Says what the ranks cannot have said, and returns the exit code.
  int verdict() const {
    if (!bad_since_) return 0;
    if (!cause_ && first_out_) say(*first_out_, "ended before the others, with exit code 0");
    if (!cause_) return 1;
    const auto [rank, status] = *cause_;
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    const int number = WTERMSIG(status);
    const char* name = sigabbrev_np(number);
    say(rank, fmt::format("was killed by signal {}{}{}", number, name ? fmt::format(" (SIG{})", name) : "",
                          number == SIGKILL ? ", as the system does when memory runs out" : ""));
    return 128 + number;
  }

  void say(size_t rank, const std::string& text) const {
    write_all(STDERR_FILENO, fmt::format("{}{}: error: rank {} (pid {}) {}\n", fresh_line(STDERR_FILENO),
                                         program_invocation_short_name, rank, ranks_[rank].pid, text));
  }

  struct Cause {
    size_t rank;
    int status;  // as of waitpid()
  };

  const std::string secret_ = random_secret();
  FileDescriptor listening_, signals_;
  std::vector<Process> ranks_;
  size_t running_ = 0;
  std::optional<Clock::time_point> bad_since_;
  std::optional<size_t> first_out_;  // the rank that ended first, and well
  std::optional<Cause> cause_;
};

}  // namespace

int launch(int ranks, char** argv) {
  check(ranks > 0, "{} ranks cannot be started; give at least one", ranks);
  return Launcher(ranks, argv).run();
}

}  // namespace tessera
