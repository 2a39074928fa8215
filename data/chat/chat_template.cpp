#include "data/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <optional>

#include "data/chat/text_methods.h"
#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using jinja::Text;
using jinja::Value;

bool is_assistant(const Value& message) { return role_of(message) == kAssistantRole; }

// Whether a value holds a text that is not blank
bool says_something(const Value& value) {
  if (const Text* text = value.text()) return jinja::blanks_at_start(text->bytes()) < text->size();
  if (const jinja::List* list = value.list()) return std::ranges::any_of(*list, says_something);
  if (const jinja::Dict* dict = value.dict())
    return std::ranges::any_of(*dict, [](const auto& field) { return says_something(field.second); });
  return false;
}

bool has_origin(const Text& text, jinja::Origin origin) {
  return std::ranges::any_of(text.runs(), [&](const Text::Run& run) { return run.origin == origin; });
}
// The byte after the last one of `origin`; 0: there is none
size_t end_of_origin(const Text& text, jinja::Origin origin) {
  for (auto run = text.runs().rbegin(); run != text.runs().rend(); ++run)
    if (run->origin == origin) return run->end;
  return 0;
}
size_t begin_of_origin(const Text& text, jinja::Origin origin) {
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (run.origin == origin) return begin;
    begin = run.end;
  }
  return text.size();
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// With a zero byte, which is in no name of a token, for each byte that the template did not write
std::string template_alone(const Text& text, size_t first, size_t last) {
  std::string bytes = text.bytes().substr(first, last - first);
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (run.origin != jinja::kTemplate && run.end > first && begin < last) {
      const size_t from = std::max(begin, first) - first;
      std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                bytes.begin() + static_cast<std::ptrdiff_t>(std::min(run.end, last) - first), '\0');
    }
    begin = run.end;
  }
  return bytes;
}

// Fields of a message that change what it says
constexpr std::array kFieldsToRead{"tool_calls", "function_call", "weight", "reasoning_content", "thinking"};

}  // namespace

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
  return template_.render(variables, options_.now);
}

void ChatTemplate::check_read(const Conversation& conversation) const {
  check(conversation.tools.is_none() || template_.reads("tools"),
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

void ChatTemplate::check_written(const Conversation& conversation, const Text& text) const {
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const Value& message = conversation.messages[i];
    if (is_assistant(message)) continue;  // templates leave thoughts of earlier turns out
    const Value* content = find(*message.dict(), "content");
    if (content && says_something(*content) && !has_origin(text, static_cast<jinja::Origin>(i)))
      throw UnfitConversation(fmt::format("the chat template {} leaves out message {}, of the role {}",
                                          form_.name, i + 1, in_quotes(printable(role_of(message)))));
  }
}

// The end of the last special token or marker in a text that the template wrote; 0: there is none
size_t ChatTemplate::end_of_last_token(std::string_view text) const {
  size_t end = 0;
  for (const std::string& marker : form_.markers)
    if (const size_t at = text.rfind(marker); at != text.npos) end = std::max(end, at + marker.size());
  size_t at = 0;
  specials_.split(
      text, [&](std::string_view part) { at = static_cast<size_t>(part.data() - text.data()) + part.size(); },
      [&](const AddedToken& token) {
        at = text.find(token.content, at);
        at = at == text.npos ? text.size() : at + token.content.size();
        end = std::max(end, at);
      });
  return end;
}

size_t ChatTemplate::begin_of_turn(const Conversation& conversation, size_t message,
                                   const Text& whole) const {
  const auto origin = static_cast<jinja::Origin>(message);
  // Many templates look at the first message, and have none to write then.
  if (message == 0) return begin_of_origin(whole, origin);
  const std::string prompt = render(conversation, message, true).text.bytes();
  if (whole.bytes().starts_with(prompt)) return prompt.size();
  // An answer may begin in another way than the template would have it begin: with thoughts, or without.
  const std::string before = render(conversation, message, false).text.bytes();
  if (!whole.bytes().starts_with(before))
    throw UnfitConversation(
        fmt::format("the chat template {} writes the messages before message {} in another form once that "
                    "message follows, so what "
                    "the model would read when it answers is not what it is trained on",
                    form_.name, message + 1));
  const size_t content = begin_of_origin(whole, origin);
  const size_t same = std::min(common_prefix(whole.bytes(), prompt), content);
  if (same == content) return content;
  const size_t rest = std::max(same, before.size()) - before.size();
  return before.size() + end_of_last_token(std::string_view(whole.bytes()).substr(before.size(), rest));
}

size_t ChatTemplate::end_of_turn(const Conversation& conversation, size_t message, const Text& whole,
                                 size_t begin) const {
  const auto origin = static_cast<jinja::Origin>(message);
  const Text alone = render(conversation, message + 1, false).text;  // where this turn is the last one
  const bool same_begin =
      alone.size() >= begin && alone.bytes().compare(0, begin, whole.bytes(), 0, begin) == 0;
  const size_t begin_alone = same_begin ? begin : begin_of_turn(conversation, message, alone);
  const size_t end = std::max(end_of_origin(whole, origin), begin);
  const std::string_view closing =
      std::string_view(alone.bytes()).substr(std::max(end_of_origin(alone, origin), begin_alone));
  const size_t same = common_prefix(closing, std::string_view(whole.bytes()).substr(end));
  if (const size_t token = end_of_last_token(closing.substr(0, same)); token > 0) return end + token;
  // Ends that are text: all of it, or the lines that do not depend on what follows
  return end + (same == closing.size() ? same : closing.substr(0, same).rfind('\n') + 1);
}

std::vector<ChatTemplate::Turn> ChatTemplate::turns(const Conversation& conversation,
                                                    const jinja::Rendered& whole, size_t count) const {
  std::vector<Turn> turns;
  if (template_.marks_generation()) {
    for (const jinja::Span& span : whole.generated)
      if (span.first < span.last) turns.push_back({span.first, span.last});
    return turns;
  }
  size_t done = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!is_assistant(conversation.messages[i])) continue;
    const size_t begin = std::max(begin_of_turn(conversation, i, whole.text), done);
    done = std::max(end_of_turn(conversation, i, whole.text, begin), begin);
    if (begin < done) turns.push_back({begin, done});
  }
  return turns;
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

EncodedChat ChatTemplate::encode(const Conversation& conversation, bool all,
                                 const EncodeText& encode_text) const {
  EncodedChat encoded;
  if (conversation.messages.empty()) return encoded;
  check_read(conversation);
  const jinja::Rendered whole = render(conversation, conversation.messages.size(), false);
  const Text& text = whole.text;
  std::vector<Turn> counted;
  if (!all) {
    check_written(conversation, text);
    counted = turns(conversation, whole, conversation.messages.size());
  }
  Begin begin;
  const auto add_part = [&](Turn part, bool counts) {
    ChatPart made{.ids = {}, .counts = counts || all};
    encode_part(text, part, encode_text, begin, made.ids);
    if (made.ids.empty()) return;
    if (counts && specials_.is_special(made.ids.back()) &&
        std::ranges::find(encoded.turn_ends, made.ids.back()) == encoded.turn_ends.end())
      encoded.turn_ends.push_back(made.ids.back());
    encoded.parts.push_back(std::move(made));
  };
  size_t done = 0;
  for (const Turn& turn : counted) {
    encoded.joined += joins(text, turn.first) || (turn.last < text.size() && joins(text, turn.last));
    add_part({done, turn.first}, false);
    add_part(turn, true);
    done = turn.last;
    const Text said = text.part(turn.first, turn.last - turn.first);
    encoded.has_targets = encoded.has_targets || std::ranges::any_of(said.runs(), [](const Text::Run& run) {
                            return run.origin != jinja::kTemplate;
                          });
  }
  add_part({done, text.size()}, false);
  encoded.ends_with_target =
      !counted.empty() && done == text.size() && !specials_.is_special(encoded.parts.back().ids.back());
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
  const jinja::Rendered whole = render(conversation, conversation.messages.size(), true);
  const EncodeText encode_text = [&](std::string_view text, SpecialTokens special, TextPlace place,
                                     std::vector<int32_t>& ids) {
    tokenizer_.encode(text, special, ids, place);
  };
  std::vector<Turn> answers;
  try {
    answers = turns(conversation, whole, conversation.messages.size());
  } catch (const UnfitConversation&) {
    // of earlier answers, that were not in the data of any training either
  }
  std::vector<int32_t> ids;
  Begin begin = begin_at(whole.text, from);
  size_t done = from;
  for (Turn answer : answers) {
    if (answer.last <= from) continue;
    answer.first = std::max(answer.first, from);
    encode_part(whole.text, {done, answer.first}, encode_text, begin, ids);
    encode_part(whole.text, answer, encode_text, begin, ids);
    done = answer.last;
  }
  encode_part(whole.text, {done, whole.text.size()}, encode_text, begin, ids);
  return ids;
}

ChatTemplate::TurnEnd ChatTemplate::turn_end() const {
  Conversation talk;
  talk.add("user", "Hi");
  talk.add(kAssistantRole, "Hello");
  try {
    const Text text = render(talk, 2, false).text;
    const size_t end = end_of_turn(talk, 1, text, begin_of_turn(talk, 1, text));
    const size_t said = end_of_origin(text, 1);
    const std::string closing = text.bytes().substr(std::min(said, end), end - std::min(said, end));
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
