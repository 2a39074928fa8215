// The signals that ask a run to save and stop.
#pragma once

#include <array>
#include <csignal>
#include <string>

namespace tessera {

inline constexpr std::array kStopSignals{SIGINT, SIGTERM, SIGHUP};

// From here on the first of them is only noted, and acknowledged on stdout at once if `speaks`; one that
// comes more than a second later ends the program. What is ignored (nohup) stays ignored.
void catch_stop_signals(bool speaks);
int stop_signal();  // the first that came; 0: none

// What the acknowledgement says that the program stops after, "this micro-batch"; a literal.
void set_stopping_point(const char* what);

std::string name_of_signal(int number);  // "SIGTERM"

}  // namespace tessera
