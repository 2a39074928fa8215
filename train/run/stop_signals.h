// The signals that ask a run to save and stop.
#pragma once

#include <array>
#include <csignal>
#include <string>

namespace tessera {

inline constexpr std::array kStopSignals{SIGINT, SIGTERM, SIGHUP};

// From now on the first of them is only recorded, and acknowledged on stdout if `acknowledge`; one that
// arrives more than a second later ends the program. Ignored signals (nohup) stay ignored.
void catch_stop_signals(bool acknowledge);
int stop_signal();  // the first that arrived; 0: none

// What the program finishes before it stops, for the acknowledgement: "this micro-batch"; a literal.
void set_stopping_point(const char* what);

std::string name_of_signal(int number);  // "SIGTERM"

}  // namespace tessera
