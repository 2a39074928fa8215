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
// Two answers to one prompt; the first one is preferred
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

// `line` is a JSON object with one of these: a text in `text_field`; the texts "prompt" and "completion"; a
// list "messages" of {"role", "content", ...}, with "tools" and "chat_template_kwargs" if they are there;
// "chosen" and "rejected", which are two completions of "prompt". "prompt" and completions may also be such
// lists of messages: they are a conversation in which the completion counts. If "prompt" is missing, the
// prompt is what "chosen" and "rejected" both begin with, as in TRL: the same messages, or the same
// characters up to a space before the first one that differs, so that something is left of each. A completion
// with a "label", true or false, is a desirable or an undesirable answer. Any sample, and an assistant's
// message, may have a "weight", a number of at least 0 by which the loss is multiplied. Other fields are
// metadata, and so is a "label" of another type. As in transformers, a key of a message that is null is left
// out. Thoughts get all names under which templates read them. Error, naming file and line: no JSON object;
// none of these fields, or fields of two kinds; a value of another type; thoughts that differ; a message of a
// pair with a weight other than 0 and 1; a message of another role with a weight other than 0.
WeightedSample parse_weighted_sample(std::string_view line, const std::string& input, int64_t line_number,
                                     const std::string& text_field);
// The same without its weight
Sample parse_sample(std::string_view line, const std::string& input, int64_t line_number,
                    const std::string& text_field);

// Calls on_line(line, its number) for each line that is not blank in a piece of JSON lines. The line comes
// without its line end, so that messages about faults name this line.
void for_each_line(const Piece& piece, const std::function<void(std::string_view, int64_t)>& on_line);

// Calls on_text for each text of a piece. Prompts, completions and the texts of messages are texts of their
// own.
void for_each_text(const Piece& piece, const std::string& text_field,
                   const std::function<void(std::string_view)>& on_text);

}  // namespace tessera
