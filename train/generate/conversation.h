// A conversation on a terminal. Its turns stay in the cache, so a further message costs only its own tokens.
#pragma once

#include <string>

#include "train/generate/chat.h"
#include "train/generate/sample_output.h"
#include "train/generate/samples.h"

namespace tessera {

// Reads messages from standard input, one a line, and prints the answers, until the input ends. Ctrl-C ends
// an answer, or, while a message is expected, the conversation. If a message no longer fits the cache, a new
// conversation begins with it, and a notice says so. `rule` ends answers at the template's end of a turn.
Throughput converse(Session& session, Decoder& decoder, const Tokenizer& tokenizer, ChatTurns& chat,
                    const GenerationRule& rule, TextOutput& out);

}  // namespace tessera
