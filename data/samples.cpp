#include "data/samples.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
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
constexpr const char *kLabel = "label", *kWeight = "weight";
constexpr const char *kChosen = "chosen", *kRejected = "rejected";

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

// A "weight", if there is one
template <class Json>
std::optional<double> weight_in(const Json& object, const std::string& where) {
  const auto found = object.find(kWeight);
  if (found == object.end() || found->is_null()) return {};
  // As a float, which is what is stored
  const double weight = found->is_number() ? static_cast<double>(found->template get<float>()) : -1;
  check(std::isfinite(weight) && weight >= 0,
        "{}: expected a number of at least 0 in the field '{}', which the loss is multiplied by, found {}; "
        "give metadata another name",
        where, kWeight, found->dump());
  return weight;
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
    if (!value.is_null() && name != kWeight) fields.emplace_back(name, value);
  name_thoughts(fields, place);
  const bool thinks = std::ranges::any_of(
      fields, [](const auto& one) { return std::ranges::find(kThoughts, one.first) != std::end(kThoughts); });
  check(has_content || calls || thinks, "{}: expected the field 'content'", place);
  check(!has_content || !message["content"].is_null() || calls || thinks,
        "{}: expected a text in the field 'content', found null", place);
  const auto number = static_cast<jinja::Origin>(conversation.messages.size());
  if (const std::optional<double> weight = weight_in(message, place)) {
    check(*weight == 0 || message["role"] == kAssistantRole,
          "{}: its weight is {}, and only what an assistant says counts: leave the weight out", place,
          *weight);
    if (*weight != 1) conversation.weights[conversation.messages.size()] = *weight;
  }
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

// Of which messages a conversation is made
struct Turns {
  const char *prompt, *answer;  // fields; no prompt: the answer is all of it
  size_t prompt_messages = 0;   // without a prompt: so many messages of the answer are one
};
Conversation take_conversation(const nlohmann::ordered_json& object, const std::string& where,
                               const Turns& turns) {
  Conversation conversation;
  if (turns.prompt) add_messages(object, turns.prompt, where, conversation);
  conversation.first_answer = turns.prompt ? conversation.messages.size() : turns.prompt_messages;
  add_messages(object, turns.answer, where, conversation);
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

// How many values two lists, or characters two texts, have in common at their beginning; fewer than the
// shorter one has
template <class List>
size_t alike(const List& a, const List& b) {
  const size_t most = std::min(a.size(), b.size());
  size_t count = 0;
  while (count + 1 < most && a[count] == b[count]) ++count;
  return count;
}

Preference take_texts(json& object, const std::string& where) {
  std::string chosen = take_text(object, kChosen, where), rejected = take_text(object, kRejected, where);
  std::string prompt;
  if (object.contains(kPrompt)) {
    prompt = take_text(object, kPrompt, where);
  } else {
    size_t count = alike(chosen, rejected);
    const bool differs = !chosen.empty() && !rejected.empty() && chosen[count] != rejected[count];
    const auto is_within = [&](size_t at) {  // a character
      return at < chosen.size() && (static_cast<unsigned char>(chosen[at]) & 0xc0) == 0x80;
    };
    while (count > 0 && is_within(count)) --count;
    if (count > 0 && differs && chosen[count - 1] == ' ') --count;
    prompt = chosen.substr(0, count);
    chosen.erase(0, count), rejected.erase(0, count);
  }
  return {Completion{prompt, std::move(chosen)}, Completion{prompt, std::move(rejected)}};
}

// A pair is judged by sums of log-probabilities, in which a token is or is not.
void check_weights_of_pair(const Conversation& conversation, const std::string& where) {
  for (const auto& [message, weight] : conversation.weights)
    check(weight == 0 || weight == 1,
          "{}: message {}: its weight is {}, and of pairs a message counts or not: 0 or 1. A 'weight' of the "
          "line is that of the pair",
          where, message + 1, weight);
}

Preference take_preference(json& object, std::string_view line, const std::string& where) {
  for (const char* name : {kChosen, kRejected})
    check(object.contains(name), "{}: expected the fields 'chosen' and 'rejected', found {}", where,
          names_in(object));
  const bool lists = object[kChosen].is_array();
  check(lists == object[kRejected].is_array() &&
            (!object.contains(kPrompt) || lists == object[kPrompt].is_array()),
        "{}: 'prompt', 'chosen' and 'rejected' have to be all texts, or all lists of messages", where);
  if (!lists) return take_texts(object, where);
  const auto exact = jinja::parse_json_exactly(line);
  const bool has_prompt = exact.contains(kPrompt);
  const auto side = [&](const char* field) {
    Conversation made = take_conversation(exact, where,
                                          {.prompt = has_prompt ? kPrompt : nullptr,
                                           .answer = field,
                                           .prompt_messages = alike(exact[kChosen], exact[kRejected])});
    check_weights_of_pair(made, where);
    return made;
  };
  return {side(kChosen), side(kRejected)};
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

Sample sample_in(json& object, std::string_view line, const std::string& where,
                 const std::string& text_field) {
  std::vector<std::string> kinds;  // by the field that only this kind has
  for (const std::string& field :
       {text_field, std::string(kCompletion), std::string(kMessages), std::string(kChosen)})
    if (object.contains(field) && std::ranges::find(kinds, field) == kinds.end()) kinds.push_back(field);
  check(!kinds.empty(),
        "{}: expected the field '{}', or 'prompt' and 'completion', or 'messages', or 'chosen' and "
        "'rejected', found {}; --text-field names the field of a text",
        where, text_field, names_in(object));
  check(kinds.size() == 1,
        "{}: found the fields '{}' and '{}', so the line may be two kinds of document; keep one of them",
        where, kinds[0], kinds.back());
  if (kinds[0] == text_field) return take_text(object, text_field, where);
  if (kinds[0] == kChosen) return take_preference(object, line, where);
  // `line` has been read. Here the fields of an object keep their order, which a template may write.
  if (kinds[0] == kMessages)
    return take_conversation(jinja::parse_json_exactly(line), where, {nullptr, kMessages});
  std::variant<Completion, Conversation> answer;
  if (object[kCompletion].is_array()) {
    answer = take_conversation(jinja::parse_json_exactly(line), where, {kPrompt, kCompletion});
  } else {
    answer = Completion{take_text(object, kPrompt, where), take_text(object, kCompletion, where)};
  }
  if (object.contains(kLabel) && object[kLabel].is_boolean())
    return Labelled{std::move(answer), object[kLabel].get<bool>()};
  return std::visit([](auto&& one) { return Sample(std::move(one)); }, std::move(answer));
}

}  // namespace

WeightedSample parse_weighted_sample(std::string_view line, const std::string& input, int64_t line_number,
                                     const std::string& text_field) {
  // A document may be as long as memory allows, and have any fields beside its text.
  json object =
      parse_json(line, input, {.bytes = line.size(), .repeated_keys = true, .first_line = line_number});
  const std::string where = fmt::format("{}:{}", input, line_number);
  check(object.is_object(), "{}: expected a JSON object with a document in its fields, found a JSON {}",
        where, object.type_name());
  const double weight = text_field == kWeight ? 1 : weight_in(object, where).value_or(1);
  return {.sample = sample_in(object, line, where, text_field), .weight = weight};
}

Sample parse_sample(std::string_view line, const std::string& input, int64_t line_number,
                    const std::string& text_field) {
  return parse_weighted_sample(line, input, line_number, text_field).sample;
}

void for_each_text(const Piece& piece, const std::string& text_field,
                   const std::function<void(std::string_view)>& on_text) {
  if (!piece.is_lines) return on_text(piece.bytes);
  for_each_line(piece, [&](std::string_view line, int64_t number) {
    const Sample sample = parse_sample(line, piece.input, number, text_field);
    if (const auto* text = std::get_if<std::string>(&sample)) on_text(*text);
    const auto of_completion = [&](const Completion& completion, bool prompt) {
      if (prompt) on_text(completion.prompt);
      on_text(completion.completion);
    };
    const auto of_conversation = [&](const Conversation& conversation, size_t first) {
      for (const jinja::Value& message : std::span(conversation.messages).subspan(first))
        for (const auto& [name, value] : *message.dict()) {
          const bool again = std::ranges::find(kThoughts, name.bytes()) > std::begin(kThoughts) &&
                             std::ranges::find(kThoughts, name.bytes()) != std::end(kThoughts);
          if (name.bytes() != "role" && !again) for_each_said(value, on_text);
        }
    };
    if (const auto* completion = std::get_if<Completion>(&sample)) of_completion(*completion, true);
    if (const auto* conversation = std::get_if<Conversation>(&sample)) of_conversation(*conversation, 0);
    if (const auto* labelled = std::get_if<Labelled>(&sample)) {
      if (const auto* completion = std::get_if<Completion>(&labelled->answer))
        of_completion(*completion, true);
      if (const auto* conversation = std::get_if<Conversation>(&labelled->answer))
        of_conversation(*conversation, 0);
    }
    if (const auto* pair = std::get_if<Preference>(&sample))  // the prompt once
      for (const auto* side : {&pair->chosen, &pair->rejected}) {
        const bool first = side == &pair->chosen;
        if (const auto* completion = std::get_if<Completion>(side)) of_completion(*completion, first);
        if (const auto* conversation = std::get_if<Conversation>(side))
          of_conversation(*conversation, first ? 0 : conversation->first_answer);
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
