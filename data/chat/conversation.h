// A conversation, as a chat template reads it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "data/chat/value.h"

namespace tessera {

struct Conversation {
  jinja::List messages;     // dictionaries, with at least "role"; the texts of message i have the origin i
  jinja::Value tools;       // a list, or none
  jinja::Dict values;       // further variables of the template, such as enable_thinking
  size_t first_answer = 0;  // the first message of a completion: what was said before it does not count
  std::map<size_t, double> weights = {};  // of the losses of messages, at least 0; of others: 1

  void add(std::string_view role, std::string content);
};

// "" where a message has no text of this name
std::string_view text_field(const jinja::Value& message, std::string_view field);
inline std::string_view role_of(const jinja::Value& message) { return text_field(message, "role"); }

// Whether a value holds a text that is not blank
bool says_something(const jinja::Value& value);

// Names under which a message has the thoughts of an answer: the first is the one that templates read.
inline constexpr const char* kThoughts[]{"reasoning_content", "thinking", "reasoning"};

inline constexpr std::string_view kAssistantRole = "assistant";

}  // namespace tessera
