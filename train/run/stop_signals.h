// The signals that ask a run to save and stop: what the terminal says when one arrives.
#pragma once

namespace tessera {

// From now on the first of them is only recorded: see stop_signal(). It is acknowledged on stdout if
// `acknowledge`. One that arrives more than a second later ends the program.
void catch_stop_signals(bool acknowledge);

// What the program finishes before it stops, for the acknowledgement: "this micro-batch"; a literal.
void set_stopping_point(const char* what);

}  // namespace tessera
