// Signals: how every program catches them. What is called when one arrives may call only what is safe in a
// signal handler: no allocation, no formatting, no lock.
#pragma once

#include <array>
#include <csignal>
#include <span>
#include <string>

namespace tessera {

// That ask a program to stop. SIGUSR1 is how Slurm's --signal=USR1@SECONDS says that the time is nearly over.
inline constexpr std::array kStopSignals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// A read, or another call that waits, when a signal arrives
enum class BlockedCalls { kEnd, kGoOn };

// From now on handler(number) is called for these signals, on whichever thread the system picks, and errno is
// kept. Signals that are ignored (nohup) stay ignored. A program has one handler: the last.
void handle_signals(std::span<const int> numbers, BlockedCalls calls, void (*handler)(int number));

struct StopSignals {
  BlockedCalls calls = BlockedCalls::kEnd;
  // One that arrives more than a second after the first ends the program. Launchers often send a signal
  // twice at once, to the program and to its process group: within a second they count as one. SIGUSR1 counts
  // neither as the first nor as the second: what follows it is the usual SIGTERM.
  bool second_ends = false;
  void (*on_first)(int number) = nullptr;
};
// From now on the first of kStopSignals is only recorded.
void record_stop_signals(const StopSignals& settings);
int stop_signal();          // the first that arrived; 0: none
void forget_stop_signal();  // the next one is the first again

std::string name_of_signal(int number);  // "SIGTERM"

}  // namespace tessera
