// Signals that end a text: Ctrl-C, SIGTERM and SIGHUP.
#pragma once

namespace tessera {

// From now on the first of them is only recorded; one that arrives before it is taken, more than a second
// later, ends the program. A read that waits for input ends. Ignored signals (nohup) stay ignored.
void catch_interrupts();
bool is_interrupted();
void forget_interrupt();  // the next one is the first again

}  // namespace tessera
