// A line of JSON as a document: a text, a prompt with its completion, or a conversation.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/chat/conversation.h"
#include "data/documents.h"

namespace tessera {

struct Completion {
  std::string prompt, completion;
};
using Sample = std::variant<std::string, Completion, Conversation>;

// `line` is a JSON object with one of: a text in `text_field`; the texts "prompt" and "completion"; a list
// "messages" of {"role", "content", ...}, with "tools" and "chat_template_kwargs" if they are there. "prompt"
// and "completion" may be such lists as well: a conversation of which the completion counts. Other fields are
// metadata. As in transformers, a key of a message that is null is left out, and thoughts have all the names
// under which templates read them. `place` is file:line, for messages.
// Error, naming file and line: no JSON object; none of these fields, or those of two kinds; a value of
// another type; thoughts that differ.
Sample parse_sample(std::string_view line, const std::string& input, int64_t line_number,
                    const std::string& text_field);

// Calls on_line(line, its number) for each line of a piece of JSON lines that is not blank: without its end,
// so that a fault there is on this line.
void for_each_line(const Piece& piece, const std::function<void(std::string_view, int64_t)>& on_line);

// Calls on_text for each text of a piece: prompts, completions and texts of messages too, each by itself.
void for_each_text(const Piece& piece, const std::string& text_field,
                   const std::function<void(std::string_view)>& on_text);

}  // namespace tessera
