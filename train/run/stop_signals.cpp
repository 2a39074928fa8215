#include "train/run/stop_signals.h"

#include <unistd.h>

#include <atomic>

#include "kernels/base/signals.h"
#include "kernels/base/status_line.h"

namespace tessera {
namespace {

std::atomic<const char*> g_stopping_point{"this step"};
volatile std::sig_atomic_t g_in_place = 0;

// In a signal handler: one write
void print_acknowledgement(int number) {
  char line[200];
  size_t length = 0;
  const auto add = [&](const char* text) {
    while (*text && length < sizeof line) line[length++] = *text++;
  };
  if (g_in_place) add("\r\x1b[K");
  add(number == SIGINT ? "SIGINT" : number == SIGTERM ? "SIGTERM" : number == SIGHUP ? "SIGHUP" : "SIGUSR1");
  add(" received: stopping after ");
  add(g_stopping_point.load());
  add(number == SIGUSR1 ? "\n" : "; send it again to end at once\n");
  if (write(STDOUT_FILENO, line, length) < 0) return;  // nobody reads stdout
}

}  // namespace

void catch_stop_signals(bool acknowledge) {
  g_in_place = draws_in_place(STDOUT_FILENO);
  record_stop_signals({.calls = BlockedCalls::kGoOn,
                       .second_ends = true,
                       .on_first = acknowledge ? print_acknowledgement : nullptr});
}

void set_stopping_point(const char* what) { g_stopping_point = what; }

}  // namespace tessera
