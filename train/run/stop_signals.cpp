#include "train/run/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "kernels/base/status_line.h"

namespace tessera {
namespace {

volatile std::sig_atomic_t g_signal = 0;
volatile std::time_t g_second = 0;  // when it arrived, on the monotonic clock
std::atomic<const char*> g_stopping_point{"this step"};
volatile std::sig_atomic_t g_acknowledge = 0, g_in_place = 0;

// Only what a signal handler may call: no formatting, no allocation, one write.
void print_acknowledgement(int number) {
  char line[200];
  size_t length = 0;
  const auto add = [&](const char* text) {
    while (*text && length < sizeof line) line[length++] = *text++;
  };
  if (g_in_place) add("\r\x1b[K");
  add(number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : "SIGHUP");
  add(" received: stopping after ");
  add(g_stopping_point.load());
  add("; send it again to end at once\n");
  if (write(STDOUT_FILENO, line, length) < 0) return;  // nobody reads stdout
}

// Launchers often send the same signal twice at once, to the program and to its process group: signals within
// a second count as one.
void on_signal(int number) {
  const int before = errno;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!g_signal) {
    g_second = now.tv_sec;
    g_signal = number;
    if (g_acknowledge) print_acknowledgement(number);
  } else if (now.tv_sec - g_second > 1) {
    std::signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
  }
  errno = before;
}

}  // namespace

void catch_stop_signals(bool acknowledge) {
  g_acknowledge = acknowledge;
  g_in_place = draws_in_place(STDOUT_FILENO);
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int number : kStopSignals) {
    struct sigaction before{};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
}

int stop_signal() { return g_signal; }

void set_stopping_point(const char* what) { g_stopping_point = what; }

std::string name_of_signal(int number) {
  const char* name = sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

}  // namespace tessera
