#include "data/samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>
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
  check(found != object.end(), "{}: expected the field '{}', found {}", where, field, names_in(object));
  check(found->is_string(), "{}: expected a text in the field '{}', found a JSON {}", where, field,
        found->type_name());
  return std::move(found->get_ref<std::string&>());
}

// `line` has been read by parse_json(). Here the fields of an object keep their order, which a template may
// write.
Conversation take_conversation(std::string_view line, const std::string& where) {
  const auto object = nlohmann::ordered_json::parse(line);
  const auto& messages = object.at(kMessages);
  check(messages.is_array(), "{}: expected a list in the field '{}', found a JSON {}", where, kMessages,
        messages.type_name());
  Conversation conversation;
  for (const auto& message : messages) {
    const std::string place = fmt::format("{}: message {}", where, conversation.messages.size() + 1);
    check(message.is_object(), "{}: expected an object with 'role' and 'content', found a JSON {}", place,
          message.type_name());
    const bool has_content = message.contains("content"), calls = message.contains("tool_calls");
    check(message.contains("role") && message["role"].is_string(), "{}: expected a text in the field 'role'",
          place);
    check(has_content || calls, "{}: expected the field 'content'", place);
    check(!has_content || !message["content"].is_null() || calls,
          "{}: expected a text in the field 'content', found null", place);
    const auto number = static_cast<jinja::Origin>(conversation.messages.size());
    jinja::Dict fields;
    for (const auto& [name, value] : message.items())
      fields.emplace_back(jinja::Text(name),
                          jinja::value_of(value, name == "role" ? jinja::kOtherData : number));
    conversation.messages.emplace_back(std::move(fields));
  }
  for (const char* name : {"functions", "function_call"})
    check(!object.contains(name) || object[name].is_null(),
          "{}: '{}' is not read; transformers' name is 'tools'", where, name);
  if (object.contains("tools") && !object["tools"].is_null()) {
    check(object["tools"].is_array(), "{}: expected a list in the field 'tools', found a JSON {}", where,
          object["tools"].type_name());
    if (!object["tools"].empty()) conversation.tools = jinja::value_of(object["tools"], jinja::kOtherData);
  }
  if (object.contains("chat_template_kwargs") && !object["chat_template_kwargs"].is_null()) {
    const auto& values = object["chat_template_kwargs"];
    check(values.is_object(), "{}: expected an object in the field 'chat_template_kwargs', found a JSON {}",
          where, values.type_name());
    conversation.values = *jinja::value_of(values, jinja::kOtherData).dict();
  }
  return conversation;
}

// Calls on_text for each text that a message says.
void for_each_said(const jinja::Value& value, const std::function<void(std::string_view)>& on_text) {
  if (value.text() && !value.text()->empty()) on_text(value.text()->bytes());
  if (value.list())
    for (const jinja::Value& one : *value.list()) for_each_said(one, on_text);
  if (value.dict())
    for (const auto& [name, one] : *value.dict())
      if (name.bytes() != "role") for_each_said(one, on_text);
}

}  // namespace

Sample parse_sample(std::string_view line, const std::string& input, int64_t line_number,
                    const std::string& text_field) {
  // A document may be as long as memory allows, and have any fields beside its text.
  json object =
      parse_json(line, input, {.bytes = line.size(), .repeated_keys = true, .first_line = line_number});
  const std::string where = fmt::format("{}:{}", input, line_number);
  check(object.is_object(), "{}: expected a JSON object with a document in its fields, found a JSON {}",
        where, object.type_name());
  std::vector<std::string> kinds;  // by the field that only this kind has
  for (const std::string& field : {text_field, std::string(kCompletion), std::string(kMessages)})
    if (object.contains(field) && std::ranges::find(kinds, field) == kinds.end()) kinds.push_back(field);
  check(!kinds.empty(),
        "{}: expected the field '{}', or 'prompt' and 'completion', or 'messages', found {}; --text-field "
        "names the field of a text",
        where, text_field, names_in(object));
  check(kinds.size() == 1,
        "{}: found the fields '{}' and '{}', so the line may be two kinds of document; keep one of them",
        where, kinds[0], kinds.back());
  if (kinds[0] == text_field) return take_text(object, text_field, where);
  if (kinds[0] == kMessages) return take_conversation(line, where);
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
      for (const jinja::Value& message : conversation->messages) for_each_said(message, on_text);
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
