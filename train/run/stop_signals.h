// The signals that ask a run to save and stop: what the terminal says when one arrives.
#pragma once

namespace tessera {

// From now on the first of these signals is only recorded: see stop_signal(). If `acknowledge`, a line on
// stdout says so. A second one, more than a second later, ends the program.
void catch_stop_signals(bool acknowledge);

// What the program finishes before it stops, for the acknowledgement: "this micro-batch". It must be a
// literal.
void set_stopping_point(const char* what);

}  // namespace tessera
