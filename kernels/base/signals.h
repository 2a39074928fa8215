// Signals: how every program catches them. What is called when one arrives may call only what is safe in a
// signal handler: no allocation, no formatting, no lock.
#pragma once

#include <array>
#include <csignal>
#include <span>
#include <string>

namespace tessera {

// The signals that ask a program to stop. Slurm's --signal=USR1@SECONDS sends SIGUSR1 when the time is nearly
// over.
inline constexpr std::array kStopSignals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

// What becomes of a blocking call, such as a read, when a signal arrives: it ends, or goes on.
enum class BlockedCalls { kEnd, kGoOn };

// From now on handler(number) is called for these signals, on whichever thread the system picks, and errno is
// kept. Signals that are ignored (nohup) stay ignored. A program has one handler: the last.
void handle_signals(std::span<const int> numbers, BlockedCalls calls, void (*handler)(int number));

struct StopSignals {
  BlockedCalls calls = BlockedCalls::kEnd;
  // A second signal ends the program if it arrives more than a second after the first. Launchers often send a
  // signal twice at once, to the program and to its process group: signals within a second count as one.
  // SIGUSR1 counts neither as the first nor as the second, since the usual SIGTERM follows it.
  bool second_ends = false;
  void (*on_first)(int number) = nullptr;
};
// From now on the first of kStopSignals is only recorded.
void record_stop_signals(const StopSignals& settings);
int stop_signal();          // the number of the first stop signal that arrived; 0: none
void forget_stop_signal();  // after this, the next stop signal is again the first

std::string name_of_signal(int number);  // "SIGTERM"

}  // namespace tessera
