#include "data/samples.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr const char* kPrompt = "prompt";
constexpr const char* kCompletion = "completion";
constexpr const char* kMessages = "messages";

std::string names_in(const json& object) {
  std::string found;
  for (const auto& [name, value] : object.items())
    found += fmt::format("{}'{}'", found.empty() ? "" : ", ", name);
  return found.empty() ? "no fields" : found;
}

std::string take_text(json& object, const std::string& field, const std::string& where) {
  const auto found = object.find(field);
  check(found != object.end(), "{}: wanted the field '{}', found {}", where, field, names_in(object));
  check(found->is_string(), "{}: wanted a string in the field '{}', found a JSON {}", where, field,
        found->type_name());
  return std::move(found->get_ref<std::string&>());
}

// Fields that change what a conversation says, or what counts in it.
void refuse_fields(const json& object, std::initializer_list<const char*> fields, const std::string& where) {
  for (const char* field : fields) {
    const auto found = object.find(field);
    check(found == object.end() || found->is_null(),
          "{}: '{}' is not supported: a conversation is a list of texts by system, user and assistant", where,
          field);
  }
}

ChatMessage take_message(json& message, const std::string& where) {
  check(message.is_object(), "{}: wanted an object with 'role' and 'content', found a JSON {}", where,
        message.type_name());
  const std::string role = take_text(message, "role", where);
  const auto known = from_word<Role>(role);
  check(known.has_value(), "{}: the role {} is unknown; known are system, user and assistant", where,
        in_quotes(printable(role)));
  refuse_fields(message,
                {"tool_calls", "tool_call_id", "function_call", "weight", "reasoning_content", "thinking"},
                where);
  return {.role = *known, .content = take_text(message, "content", where)};
}

Conversation take_conversation(json& object, const std::string& where) {
  refuse_fields(object, {"tools", "functions"}, where);
  json& messages = object.at(kMessages);
  check(messages.is_array(), "{}: wanted a list in the field '{}', found a JSON {}", where, kMessages,
        messages.type_name());
  Conversation conversation;
  for (json& message : messages)
    conversation.push_back(
        take_message(message, fmt::format("{}: message {}", where, conversation.size() + 1)));
  return conversation;
}

}  // namespace

Sample parse_sample(std::string_view line, const std::string& input, int64_t line_number,
                    const std::string& text_field) {
  // A document may be as long as memory allows, and have any fields beside its text.
  json object =
      parse_json(line, input, {.bytes = line.size(), .repeated_keys = true, .first_line = line_number});
  const std::string where = fmt::format("{}:{}", input, line_number);
  check(object.is_object(), "{}: wanted a JSON object with a document in its fields, found a JSON {}", where,
        object.type_name());
  std::vector<std::string> kinds;  // by the field that only this kind has
  for (const std::string& field : {text_field, std::string(kCompletion), std::string(kMessages)})
    if (object.contains(field) && std::ranges::find(kinds, field) == kinds.end()) kinds.push_back(field);
  check(
      !kinds.empty(),
      "{}: wanted the field '{}', or 'prompt' and 'completion', or 'messages', found {}; --text-field names "
      "the field of a text",
      where, text_field, names_in(object));
  check(kinds.size() == 1,
        "{}: found the fields '{}' and '{}', so the line may be two kinds of document; keep one of them",
        where, kinds[0], kinds.back());
  if (kinds[0] == text_field) return take_text(object, text_field, where);
  if (kinds[0] == kMessages) return take_conversation(object, where);
  return Completion{take_text(object, kPrompt, where), take_text(object, kCompletion, where)};
}

void for_each_text(const Piece& piece, const std::string& text_field,
                   const std::function<void(std::string_view)>& on_text) {
  if (!piece.is_lines) return on_text(piece.bytes);
  for_each_line(piece, [&](std::string_view line, int64_t number) {
    const Sample sample = parse_sample(line, piece.input, number, text_field);
    if (const auto* text = std::get_if<std::string>(&sample)) on_text(*text);
    if (const auto* completion = std::get_if<Completion>(&sample)) {
      on_text(completion->prompt);
      on_text(completion->completion);
    }
    if (const auto* conversation = std::get_if<Conversation>(&sample))
      for (const ChatMessage& message : *conversation) on_text(message.content);
  });
}

void for_each_line(const Piece& piece, const std::function<void(std::string_view, int64_t)>& on_line) {
  std::string_view rest = piece.bytes;
  for (int64_t number = piece.first_line; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t\r\n") != line.npos) on_line(line, number);
  }
}

}  // namespace tessera
