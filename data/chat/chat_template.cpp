#include "data/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "data/chat/text_parts.h"
#include "kernels/base/check.h"
#include "kernels/base/signals.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using jinja::Text;
using jinja::Value;

bool is_assistant(const Value& message) { return role_of(message) == kAssistantRole; }

// With a zero byte, which is in no name of a token, for each byte that the template did not write
std::string template_alone(const Text& text, size_t first, size_t last) {
  const Text part = text.part(first, last - first);
  std::string bytes = part.bytes();
  size_t begin = 0;
  for (const Text::Run& run : part.runs()) {
    if (run.origin != jinja::kTemplate)
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                bytes.begin() + static_cast<std::ptrdiff_t>(run.end), '\0');
    begin = run.end;
  }
  return bytes;
}

// Fields of a message that change what it says
constexpr std::array kFieldsToRead{"tool_calls", "function_call"};

}  // namespace

bool says_something(const Value& value) {
  if (const Text* text = value.text()) return jinja::blanks_at_start(text->bytes()) < text->size();
  if (const jinja::List* list = value.list()) return std::ranges::any_of(*list, says_something);
  if (const jinja::Dict* dict = value.dict())
    return std::ranges::any_of(*dict, [](const auto& field) { return says_something(field.second); });
  return false;
}

void Conversation::add(std::string_view role, std::string content) {
  const auto number = static_cast<jinja::Origin>(messages.size());
  messages.emplace_back(jinja::Dict{{Text("role"), Text(std::string(role), jinja::kOtherData)},
                                    {Text("content"), Text(std::move(content), number)}});
}

std::string_view text_field(const Value& message, std::string_view field) {
  const Value* found = message.dict() ? find(*message.dict(), field) : nullptr;
  return found && found->text() ? std::string_view(found->text()->bytes()) : std::string_view();
}

ChatTemplate::ChatTemplate(ChatForm form, const Tokenizer& tokenizer, ChatOptions options)
    : form_(std::move(form)),
      template_(form_.jinja, form_.name),
      tokenizer_(tokenizer),
      specials_(tokenizer),
      options_(std::move(options)) {
  check_markers(form_, tokenizer);
}

jinja::Dict ChatTemplate::special_tokens() const {
  jinja::Dict tokens;
  for (const auto& [name, value] : options_.values)
    if (name.bytes().ends_with("_token") && value.text()) tokens.emplace_back(name, value);
  return tokens;
}

jinja::Rendered ChatTemplate::render(const Conversation& conversation, size_t messages,
                                     bool begin_answer) const {
  const auto end = conversation.messages.begin() + static_cast<std::ptrdiff_t>(messages);
  jinja::Dict variables = conversation.values;
  variables.insert(variables.end(), {{Text("messages"), jinja::List(conversation.messages.begin(), end)},
                                     {Text("tools"), conversation.tools},
                                     {Text("documents"), Value()},
                                     {Text("add_generation_prompt"), begin_answer}});
  variables.insert(variables.end(), options_.values.begin(), options_.values.end());
  try {
    return template_.render(variables, options_.now);
  } catch (const Error& error) {
    throw RefusedConversation(error.what());
  }
}

void ChatTemplate::check_read(const Conversation& conversation) const {
  const bool has_tools = conversation.tools.list() && !conversation.tools.list()->empty();
  check(!has_tools || template_.reads("tools"),
        "the chat template {} does not read 'tools'; name one that does with --chat-template, or leave the "
        "tools out",
        form_.name);
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const Value& message = conversation.messages[i];
    for (const char* field : kFieldsToRead) {
      const Value* found = find(*message.dict(), field);
      const bool is_there = found && !found->is_none() && (!found->list() || !found->list()->empty());
      check(!is_there || template_.names(field),
            "message {}: the chat template {} does not read '{}', so it would be lost. Name a template that "
            "does with --chat-template, or leave the field out",
            i + 1, form_.name, field);
    }
    const bool known_role =
        is_assistant(message) || role_of(message) == "system" || role_of(message) == "user";
    // Templates that know texts alone would write a list as Python prints it.
    const Value* content = find(*message.dict(), "content");
    check(!content || content->text() || content->is_none() || !known_role || template_.names("text"),
          "message {}: its content is a {}, and the chat template {} takes texts alone", i + 1,
          content ? content->type_name() : "", form_.name);
    check(form_.markers.empty() || known_role,
          "message {}: the role {} is unknown to the chat template {}; known are system, user and assistant",
          i + 1, in_quotes(printable(role_of(message))), form_.name);
  }
}

// The text of a form whose markers the tokenizer has not: each marker is encoded by itself.
void ChatTemplate::encode_around_markers(std::string_view bytes, std::string_view own,
                                         const EncodeText& encode_text, Begin& begin,
                                         std::vector<int32_t>& ids) const {
  size_t done = 0;
  const auto add = [&](std::string_view part, SpecialTokens special) {
    if (!part.empty()) encode_text(part, special, std::exchange(begin.place, TextPlace::kWithin), ids);
  };
  const auto add_text = [&](size_t end) { add(bytes.substr(done, end - done), options_.special); };
  for (size_t at = 0; at < own.size();) {
    const auto marker = std::ranges::find_if(
        form_.markers, [&](const std::string& m) { return own.substr(at).starts_with(m); });
    if (marker == form_.markers.end()) {
      ++at;
      continue;
    }
    add_text(at);
    add(*marker, SpecialTokens::kMatched);
    done = at += marker->size();
  }
  add_text(bytes.size());
}

ChatTemplate::Begin ChatTemplate::begin_at(const Text& text, size_t at) const {
  Begin begin;
  const EncodeText encode_nothing = [](std::string_view, SpecialTokens, TextPlace, std::vector<int32_t>&) {};
  std::vector<int32_t> ids;
  encode_part(text, {0, at}, encode_nothing, begin, ids);
  return begin;
}

void ChatTemplate::encode_part(const Text& text, Turn part, const EncodeText& encode_text, Begin& begin,
                               std::vector<int32_t>& ids) const {
  const std::string_view bytes = std::string_view(text.bytes()).substr(part.first, part.last - part.first);
  if (bytes.empty()) return;
  const std::string masked = template_alone(text, part.first, part.last);
  if (!form_.markers.empty() && tokenizer_.special_token(form_.markers[0]) < 0)
    return encode_around_markers(bytes, masked, encode_text, begin, ids);
  const std::string_view searched =
      options_.special == SpecialTokens::kMatched ? bytes : std::string_view(masked);
  specials_.split(
      searched,
      [&](std::string_view found) {
        std::string_view shown =
            bytes.substr(static_cast<size_t>(found.data() - searched.data()), found.size());
        if (begin.strips) shown.remove_prefix(jinja::blanks_at_start(shown));
        if (shown.empty()) return;
        encode_text(shown, SpecialTokens::kAsText, begin.place, ids);
        begin = {.place = TextPlace::kWithin};
      },
      [&](const AddedToken& token) {
        ids.push_back(token.id);
        begin = {.place = TextPlace::kAfterToken, .strips = token.strip_right};
      });
}

// Whether no token would begin at `at`, were the text around it encoded whole
bool ChatTemplate::joins(const Text& text, size_t at) const {
  constexpr size_t kBefore = 64, kAfter = 256;  // bytes that no token is longer than, or that decide nothing
  const auto inside = [&](size_t place) {
    return place < text.size() && (text.bytes()[place] & 0xC0) == 0x80;
  };
  size_t first = at - std::min(at, kBefore), last = std::min(at + kAfter, text.size());
  while (inside(first)) ++first;
  while (inside(last)) ++last;
  const EncodeText encode_text = [&](std::string_view part, SpecialTokens special, TextPlace place,
                                     std::vector<int32_t>& ids) {
    tokenizer_.encode_known(part, special, ids, place);
  };
  const auto ids_to = [&](size_t end) {
    Begin begin{.place = first == 0 ? TextPlace::kStart : TextPlace::kWithin};
    std::vector<int32_t> ids;
    encode_part(text, {first, end}, encode_text, begin, ids);
    return ids;
  };
  const std::vector<int32_t> before = ids_to(at), whole = ids_to(last);
  return whole.size() < before.size() || !std::equal(before.begin(), before.end(), whole.begin());
}

// Whether the template has .NAME, 'NAME' or "NAME": a variable may have the same name
bool ChatTemplate::reads_field(std::string_view name) const {
  const std::string& jinja = form_.jinja;
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = jinja.find(name); at != jinja.npos; at = jinja.find(name, at + 1)) {
    const size_t end = at + name.size();
    const bool is_whole = end == jinja.size() || !is_part(jinja[end]);
    if (at > 0 && is_whole && std::string_view(".'\"").find(jinja[at - 1]) != std::string_view::npos)
      return true;
  }
  return false;
}

// With the field that the template reads thoughts from, where that is the name that no other program gives
Conversation ChatTemplate::with_thoughts(Conversation conversation) const {
  if (!reads_field("reasoning") || reads_field("reasoning_content") || reads_field("thinking"))
    return conversation;
  for (Value& message : conversation.messages) {
    const Value* thoughts = find(*message.dict(), "reasoning_content");
    if (thoughts == nullptr || find(*message.dict(), "reasoning") != nullptr) continue;
    jinja::Dict fields = *message.dict();
    fields.emplace_back(Text("reasoning"), *thoughts);
    message = std::move(fields);
  }
  return conversation;
}

bool ChatTemplate::loses_thoughts(const Conversation& conversation) const {
  return std::ranges::none_of(kThoughts, [&](const char* name) { return reads_field(name); }) &&
         std::ranges::any_of(conversation.messages, [](const Value& message) {
           const Value* thoughts = find(*message.dict(), "reasoning_content");
           return thoughts != nullptr && says_something(*thoughts);
         });
}

// A part that {% generation %} marks may be of several messages.
double ChatTemplate::weight_of(const Conversation& conversation, const Text& said) {
  std::optional<double> found;
  for (const Text::Run& run : said.runs()) {
    if (run.origin < 0) continue;
    const auto own = conversation.weights.find(static_cast<size_t>(run.origin));
    const double weight = own == conversation.weights.end() ? 1 : own->second;
    check(found.value_or(weight) == weight,
          "message {}: its weight is {}, and that of the message before it {}; the chat template writes them "
          "as one turn: give both the same weight",
          run.origin + 1, weight, found.value_or(weight));
    found = weight;
  }
  return found.value_or(1);
}

EncodedChat ChatTemplate::encode(const Conversation& given, bool all, const EncodeText& encode_text) const {
  EncodedChat encoded;
  if (given.messages.empty()) return encoded;
  const Conversation conversation = with_thoughts(given);
  check_read(conversation);
  encoded.lost_thoughts = loses_thoughts(conversation);
  jinja::Rendered rendered = render(conversation, conversation.messages.size(), false);
  const Shown whole = shown(std::move(rendered.text), conversation.messages.size());
  const Text& text = whole.text;
  std::vector<Turn> counted;
  if (!all) {
    check_written(conversation, whole);
    counted =
        turns(conversation, whole, rendered.generated, [] { check(stop_signal() == 0, "interrupted"); });
  }
  Begin begin;
  int32_t end = -1;  // the token that ends the last turn
  const auto add_part = [&](Turn part, double weight) {
    const bool counts = weight > 0;
    ChatPart made{.ids = {}, .counts = counts || all, .weight = counts ? weight : 1};
    encode_part(text, part, encode_text, begin, made.ids);
    if (counts) end = end_token(text, part, made.ids);
    if (made.ids.empty()) return;
    if (counts && end >= 0 && std::ranges::find(encoded.turn_ends, end) == encoded.turn_ends.end())
      encoded.turn_ends.push_back(end);
    encoded.parts.push_back(std::move(made));
  };
  size_t done = 0;
  double weight = 0;  // of the last turn
  for (const Turn& turn : counted) {
    encoded.joined += joins(text, turn.first) || (turn.last < text.size() && joins(text, turn.last));
    const Text said = text.part(turn.first, turn.last - turn.first);
    weight = weight_of(conversation, said);
    add_part({done, turn.first}, 0);
    add_part(turn, weight);
    done = turn.last;
    const bool says_something =
        std::ranges::any_of(said.runs(), [](const Text::Run& run) { return run.origin != jinja::kTemplate; });
    encoded.has_targets = encoded.has_targets || (says_something && weight > 0);
  }
  add_part({done, text.size()}, 0);
  if (done == text.size() && end < 0) encoded.ends_with_target = weight;
  size_t first = 0;
  for (const Text::Run& run : text.runs()) {
    if (run.origin != jinja::kTemplate)
      encoded.special_names += specials_.count(std::string_view(text.bytes()).substr(first, run.end - first));
    first = run.end;
  }
  return encoded;
}

std::string ChatTemplate::prompt_text(const Conversation& conversation) const {
  return render(conversation, conversation.messages.size(), true).text.bytes();
}

std::vector<int32_t> ChatTemplate::prompt(const Conversation& conversation, size_t from) const {
  check_read(conversation);
  jinja::Rendered rendered = render(conversation, conversation.messages.size(), true);
  const Shown shown_whole = shown(std::move(rendered.text), conversation.messages.size());
  const Text& whole = shown_whole.text;
  const EncodeText encode_text = [&](std::string_view text, SpecialTokens special, TextPlace place,
                                     std::vector<int32_t>& ids) {
    tokenizer_.encode(text, special, ids, place);
  };
  std::vector<Turn> answers;
  try {
    answers = turns(conversation, shown_whole, rendered.generated);
  } catch (const UnfitConversation&) {
    // of earlier answers, that were not in the data of any training either
  }
  std::vector<int32_t> ids;
  Begin begin = begin_at(whole, from);
  size_t done = from;
  for (Turn answer : answers) {
    if (answer.last <= from) continue;
    answer.first = std::max(answer.first, from);
    encode_part(whole, {done, answer.first}, encode_text, begin, ids);
    encode_part(whole, answer, encode_text, begin, ids);
    done = answer.last;
  }
  encode_part(whole, {done, whole.size()}, encode_text, begin, ids);
  return ids;
}

ChatTemplate::TurnEnd ChatTemplate::turn_end() const {
  Conversation talk;
  talk.add("user", "Hi");
  talk.add(kAssistantRole, "Hello");
  try {
    const Shown whole = shown(render(talk, 2, false).text, 2);
    const size_t end = turn_of(talk, 1, whole, 0).last, said = whole.last[1];
    const std::string closing = whole.text.bytes().substr(std::min(said, end), end - std::min(said, end));
    const std::vector<int32_t> ids = tokenizer_.encode(closing, SpecialTokens::kMatched, TextPlace::kWithin);
    if (!ids.empty() && specials_.is_special(ids.back())) return {.token = ids.back(), .marker = {}};
    for (const std::string& marker : form_.markers)
      if (closing.ends_with(marker)) return {.token = -1, .marker = marker};
  } catch (const Error&) {
    // a template that takes no such conversation
  }
  return {};
}

}  // namespace tessera
