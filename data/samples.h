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
// Two answers to one prompt, of which the first is preferred
struct Preference {
  std::variant<Completion, Conversation> chosen, rejected;
};
// An answer to a prompt, and whether it is a good one
struct Labelled {
  std::variant<Completion, Conversation> answer;
  bool desirable = true;
};
using Sample = std::variant<std::string, Completion, Conversation, Preference, Labelled>;
struct WeightedSample {
  Sample sample;
  double weight = 1;  // of its loss, at least 0
};

// `line` is a JSON object with one of: a text in `text_field`; the texts "prompt" and "completion"; a list
// "messages" of {"role", "content", ...}, with "tools" and "chat_template_kwargs" if they are there; "chosen"
// and "rejected", two completions of "prompt". "prompt" and completions may be such lists as well: a
// conversation of which the completion counts. Without a "prompt", the prompt is what "chosen" and "rejected"
// both begin with, as in TRL: the same messages, or the same characters up to a space before the first that
// differs; something is left of each. A completion with a "label", true or false, is a desirable or an
// undesirable answer. Of any sample, and of an assistant's message, "weight" is a number of at least 0 that
// the loss is multiplied by. Other fields are metadata, and so is another "label". As in transformers, a key
// of a message that is null is left out, and thoughts have all the names under which templates read them.
// Error, naming file and line: no JSON object; none of these fields, or those of two kinds; a value of
// another type; thoughts that differ; a message of a pair with a weight other than 0 and 1, or one of another
// role with a weight other than 0.
WeightedSample parse_weighted_sample(std::string_view line, const std::string& input, int64_t line_number,
                                     const std::string& text_field);
// The same without its weight
Sample parse_sample(std::string_view line, const std::string& input, int64_t line_number,
                    const std::string& text_field);

// Calls on_line(line, its number) for each line of a piece of JSON lines that is not blank: without its end,
// so that a fault there is on this line.
void for_each_line(const Piece& piece, const std::function<void(std::string_view, int64_t)>& on_line);

// Calls on_text for each text of a piece: prompts, completions and texts of messages too, each by itself.
void for_each_text(const Piece& piece, const std::string& text_field,
                   const std::function<void(std::string_view)>& on_text);

}  // namespace tessera
