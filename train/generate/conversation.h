// A conversation on a terminal. The turns stay in the cache: a further message costs its own tokens alone.
#pragma once

#include <string>

#include "train/generate/chat.h"
#include "train/generate/sample_output.h"
#include "train/generate/samples.h"

namespace tessera {

// Reads messages from standard input, a line each, and prints the answers, until the input ends. Ctrl-C ends
// an answer, or, where a message is expected, the conversation. If a message does not fit the cache any more,
// the conversation begins anew with it, and a notice says so. `rule` ends answers at the template's end of a
// turn.
Throughput converse(Session& session, Decoder& decoder, const Tokenizer& tokenizer, ChatTurns& chat,
                    const GenerationRule& rule, TextOutput& out);

}  // namespace tessera
