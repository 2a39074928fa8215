#include "kernels/base/signals.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace tessera {
namespace {

using Handler = void (*)(int);

std::atomic<Handler> g_handler = nullptr;
std::atomic<int> g_first = 0;               // of kStopSignals
std::atomic<std::time_t> g_first_time = 0;  // of all but SIGUSR1, in seconds of the monotonic clock; 0: none
StopSignals g_settings;                     // set before there is a handler
static_assert(decltype(g_handler)::is_always_lock_free && decltype(g_first)::is_always_lock_free &&
                  decltype(g_first_time)::is_always_lock_free,
              "a signal handler may not wait for a lock");

void call_handler(int number) {
  const int before = errno;
  g_handler.load()(number);
  errno = before;
}

void record(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (g_first == 0) {
    g_first = number;
    if (g_settings.on_first) g_settings.on_first(number);
  }
  if (number == SIGUSR1) return;
  if (g_first_time == 0) {
    g_first_time = now.tv_sec;
  } else if (g_settings.second_ends && now.tv_sec - g_first_time > 1) {
    std::signal(number, SIG_DFL);
    raise(number);  // delivered when the handler returns
  }
}

}  // namespace

void handle_signals(std::span<const int> numbers, BlockedCalls calls, void (*handler)(int)) {
  g_handler = handler;
  struct sigaction action {};
  action.sa_handler = call_handler;
  action.sa_flags = calls == BlockedCalls::kGoOn ? SA_RESTART : 0;
  for (const int number : numbers) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
}

void record_stop_signals(const StopSignals& settings) {
  g_settings = settings;
  handle_signals(kStopSignals, settings.calls, record);
}

int stop_signal() { return g_first; }

void forget_stop_signal() {
  g_first = 0;
  g_first_time = 0;
}

std::string name_of_signal(int number) {
  const char* name = sigabbrev_np(number);
  return name ? std::string("SIG") + name : "signal " + std::to_string(number);
}

}  // namespace tessera
