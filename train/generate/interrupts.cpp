#include "train/generate/interrupts.h"

#include <cerrno>
#include <csignal>
#include <ctime>

#include "train/run/stop_signals.h"

namespace tessera {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;
volatile std::time_t g_second = 0;  // when, on the monotonic clock

void on_signal(int number) {
  const int before = errno;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!g_interrupted) {
    g_second = now.tv_sec;
    g_interrupted = 1;
  } else if (now.tv_sec - g_second > 1) {
    std::signal(number, SIG_DFL);
    raise(number);  // delivered when this handler returns
  }
  errno = before;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};  // without SA_RESTART: a read that waits for a person must end
  action.sa_handler = on_signal;
  for (const int number : kStopSignals) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
}

bool is_interrupted() { return g_interrupted != 0; }

void forget_interrupt() { g_interrupted = 0; }

}  // namespace tessera
