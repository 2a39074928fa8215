#include "data/samples.h"

#include <algorithm>
#include <nlohmann/json.hpp>
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
  check(found != object.end(), "{}: expected the field '{}', found {}", where, field, names_in(object));
  check(found->is_string(), "{}: expected a text in the field '{}', found a JSON {}", where, field,
        found->type_name());
  return std::move(found->get_ref<std::string&>());
}

using Message = std::vector<std::pair<std::string, nlohmann::ordered_json>>;  // its fields, in their order

// The thoughts of an answer under the names that transformers gives them: it does not matter which the data
// has.
void name_thoughts(Message& message, const std::string& place) {
  const auto field = [&](const std::string& name) {
    return std::ranges::find(message, name, &Message::value_type::first);
  };
  std::optional<std::pair<std::string, nlohmann::ordered_json>> thoughts;
  for (const char* name : kThoughts) {
    const auto found = field(name);
    if (found == message.end()) continue;
    check(found->second.is_string() || found->second.is_array(),
          "{}: expected a text in the field '{}', found a JSON {}", place, name, found->second.type_name());
    if (!thoughts || thoughts->second.empty() || thoughts->second == "") {
      thoughts = *found;
      continue;
    }
    const bool is_empty = found->second.empty() || found->second == "";
    check(
        is_empty || found->second == thoughts->second,
        "{}: the fields '{}' and '{}' are both the thoughts of the answer, and they differ; keep one of them",
        place, thoughts->first, name);
  }
  if (!thoughts) return;
  for (const char* name : kThoughts)
    if (const auto found = field(name); found != message.end()) found->second = thoughts->second;
  if (field("thinking") == message.end()) message.insert(message.begin(), {"thinking", thoughts->second});
  if (field("reasoning_content") == message.end())
    message.emplace_back("reasoning_content", thoughts->second);
}

void add_message(const nlohmann::ordered_json& message, const std::string& where,
                 Conversation& conversation) {
  const std::string place = fmt::format("{}: message {}", where, conversation.messages.size() + 1);
  check(message.is_object(), "{}: expected an object with 'role' and 'content', found a JSON {}", place,
        message.type_name());
  const bool has_content = message.contains("content"), calls = message.contains("tool_calls");
  check(message.contains("role") && message["role"].is_string(), "{}: expected a text in the field 'role'",
        place);
  Message fields;
  for (const auto& [name, value] : message.items())
    if (!value.is_null()) fields.emplace_back(name, value);
  name_thoughts(fields, place);
  const bool thinks = std::ranges::any_of(
      fields, [](const auto& one) { return std::ranges::find(kThoughts, one.first) != std::end(kThoughts); });
  check(has_content || calls || thinks, "{}: expected the field 'content'", place);
  check(!has_content || !message["content"].is_null() || calls || thinks,
        "{}: expected a text in the field 'content', found null", place);
  const auto number = static_cast<jinja::Origin>(conversation.messages.size());
  jinja::Dict made;
  for (const auto& [name, value] : fields)
    made.emplace_back(jinja::Text(name), jinja::value_of(value, name == "role" ? jinja::kOtherData : number));
  conversation.messages.emplace_back(std::move(made));
}

void add_messages(const nlohmann::ordered_json& object, const char* field, const std::string& where,
                  Conversation& conversation) {
  const auto found = object.find(field);
  check(found != object.end(), "{}: expected a list of messages in the field '{}'", where, field);
  check(found->is_array(), "{}: expected a list in the field '{}', found a JSON {}", where, field,
        found->type_name());
  for (const auto& message : *found) add_message(message, where, conversation);
}

// `line` has been read by parse_json(). Here the fields of an object keep their order, which a template may
// write.
Conversation take_conversation(std::string_view line, const std::string& where) {
  const auto object = jinja::parse_json_exactly(line);
  Conversation conversation;
  if (object.contains(kMessages)) {
    add_messages(object, kMessages, where, conversation);
  } else {
    add_messages(object, kPrompt, where, conversation);
    conversation.first_answer = conversation.messages.size();
    add_messages(object, kCompletion, where, conversation);
  }
  for (const char* name : {"functions", "function_call"})
    check(!object.contains(name) || object[name].is_null(),
          "{}: '{}' is not read; transformers' name is 'tools'", where, name);
  if (object.contains("tools") && !object["tools"].is_null()) {
    check(object["tools"].is_array(), "{}: expected a list in the field 'tools', found a JSON {}", where,
          object["tools"].type_name());
    conversation.tools = jinja::value_of(object["tools"], jinja::kOtherData);
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
  if (kinds[0] == kMessages || object[kCompletion].is_array()) return take_conversation(line, where);
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
      for (const jinja::Value& message : conversation->messages)
        for (const auto& [name, value] : *message.dict()) {
          const bool again = std::ranges::find(kThoughts, name.bytes()) > std::begin(kThoughts) &&
                             std::ranges::find(kThoughts, name.bytes()) != std::end(kThoughts);
          if (name.bytes() != "role" && !again) for_each_said(value, on_text);
        }
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
