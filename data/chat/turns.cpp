// Where the turns of an assistant begin and end in the text of a conversation.
//
// A turn is found by rendering the messages before it, and those up to it: it begins where the template would
// have an answer begin, and ends with the last special token that does not depend on what follows. For each
// turn of a conversation that would take time quadratic in its length. So in a long one the turns are sorted
// by kind: what the template writes before and after the message, and which fields it and its neighbours
// have. Of each kind the first two, the middle one and the last two are rendered. If they are cut in the same
// places, so are the others; if not, each of the kind is rendered.
#include <algorithm>
#include <map>
#include <optional>

#include "data/chat/chat_template.h"
#include "kernels/base/present.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using jinja::Text;
using jinja::Value;

bool is_assistant(const Value& message) { return role_of(message) == kAssistantRole; }

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

// The fields of a message, and its role
std::string outline(const Value& message) {
  std::string names(role_of(message));
  for (const auto& [name, value] : *message.dict()) {
    names += ' ';
    names += name.bytes();
    if (!says_something(value)) names += '-';
  }
  return names;
}

bool has_thoughts(const Value& message) {
  return std::ranges::any_of(kThoughts, [&](const char* name) {
    const Value* found = find(*message.dict(), name);
    return found != nullptr && says_something(*found);
  });
}

}  // namespace

ChatTemplate::Shown ChatTemplate::shown(Text text, size_t messages) {
  Shown made{
      .text = {}, .first = std::vector<size_t>(messages, text.size()), .last = std::vector<size_t>(messages)};
  size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    if (const auto message = static_cast<size_t>(run.origin); run.origin >= 0 && message < messages) {
      made.first[message] = std::min(made.first[message], begin);
      made.last[message] = run.end;
    }
    begin = run.end;
  }
  made.text = std::move(text);
  return made;
}

void ChatTemplate::check_written(const Conversation& conversation, const Shown& whole) const {
  for (size_t i = 0; i < conversation.messages.size(); ++i) {
    const Value& message = conversation.messages[i];
    if (is_assistant(message)) continue;  // templates leave thoughts of earlier turns out
    const Value* content = find(*message.dict(), "content");
    if (content && says_something(*content) && whole.last[i] == 0)
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
                                   const Shown& whole) const {
  // Many templates look at the first message, and have none to write then.
  if (message == 0) return whole.first[0];
  const std::string& bytes = whole.text.bytes();
  const std::string prompt = render(conversation, message, true).text.bytes();
  if (bytes.starts_with(prompt)) return prompt.size();
  // An answer may begin in another way than the template would have it begin: with thoughts, or without.
  const std::string before = render(conversation, message, false).text.bytes();
  if (!bytes.starts_with(before))
    throw UnfitConversation(
        fmt::format("the chat template {} writes the messages before message {} in another form once that "
                    "message follows, so what "
                    "the model would read when it answers is not what it is trained on",
                    form_.name, message + 1));
  const size_t content = whole.first[message];
  const size_t same = std::min(common_prefix(bytes, prompt), content);
  if (same == content) return content;
  const size_t rest = std::max(same, before.size()) - before.size();
  return before.size() + end_of_last_token(std::string_view(bytes).substr(before.size(), rest));
}

size_t ChatTemplate::end_of_turn(const Conversation& conversation, size_t message, const Shown& whole,
                                 size_t begin) const {
  // Where this turn is the last one
  const Shown alone = shown(render(conversation, message + 1, false).text, message + 1);
  const std::string_view bytes = whole.text.bytes(), last = alone.text.bytes();
  const bool same_begin = last.size() >= begin && last.substr(0, begin) == bytes.substr(0, begin);
  const size_t begin_alone = same_begin ? begin : begin_of_turn(conversation, message, alone);
  // What follows may repeat a part of this message, as gpt-oss writes the name of a call before its result.
  const size_t own = alone.last[message];
  const bool same_message = last.substr(0, own) == bytes.substr(0, own);
  const size_t end = std::max(same_message ? own : whole.last[message], begin);
  const std::string_view closing = last.substr(std::max(own, begin_alone));
  const size_t same = common_prefix(closing, bytes.substr(end));
  if (const size_t token = end_of_last_token(closing.substr(0, same)); token > 0) return end + token;
  // Ends that are text: all of it, or the lines that do not depend on what follows
  return end + (same == closing.size() ? same : closing.substr(0, same).rfind('\n') + 1);
}

// After the turns before it, which end at `done`
ChatTemplate::Turn ChatTemplate::turn_of(const Conversation& conversation, size_t message, const Shown& whole,
                                         size_t done) const {
  const size_t begin = std::max(begin_of_turn(conversation, message, whole), done);
  return {begin, std::max(end_of_turn(conversation, message, whole, begin), begin)};
}

// The kinds of the answers of a conversation, as the top of this file says. An answer of which the template
// writes nothing is of no kind.
std::map<std::string, std::vector<ChatTemplate::Place>> ChatTemplate::kinds_of(
    const Conversation& conversation, const Shown& whole) {
  const auto& messages = conversation.messages;
  const std::string_view bytes = whole.text.bytes();
  const auto after_numbers = [&](size_t begin, size_t end) {
    const size_t digit = bytes.substr(begin, end - begin).find_last_of("0123456789");
    return digit == bytes.npos ? begin : begin + digit + 1;
  };
  std::map<std::string, std::vector<Place>> kinds;
  std::vector<size_t> next(messages.size() + 1, bytes.size());  // where the messages after one begin
  for (size_t i = messages.size(); i-- > 0;) next[i] = std::min(next[i + 1], whole.first[i]);
  size_t before = 0;    // where those before it end
  bool thinks = false;  // an answer since the last message of a user does
  for (size_t i = 0; i < messages.size(); ++i) {
    const size_t first = whole.first[i], last = whole.last[i];
    if (role_of(messages[i]) == "user") thinks = false;
    if (is_assistant(messages[i]) && i >= conversation.first_answer && last > 0 && before <= first &&
        last <= next[i + 1]) {
      const Place place{.message = i,
                        .begin = after_numbers(before, first),
                        .end = after_numbers(last, next[i + 1]),
                        .next = next[i + 1]};
      std::string kind = thinks ? "thinks" : "";
      for (size_t k = std::max<size_t>(i, 2) - 2; k < std::min(i + 2, messages.size()); ++k)
        kind += '\0' + outline(messages[k]);
      kind += '\0' + std::string(bytes.substr(place.begin, first - place.begin)) + '\0';
      kind += bytes.substr(place.end, place.next - place.end);
      kinds[kind].push_back(place);
    }
    thinks = thinks || has_thoughts(messages[i]);
    before = std::max(before, last);
  }
  return kinds;
}

// The turns of long conversations by the number of their message, where their kind decides
std::map<size_t, ChatTemplate::Turn> ChatTemplate::turns_by_kind(const Conversation& conversation,
                                                                 const Shown& whole,
                                                                 void (*on_turn)()) const {
  struct Kind {
    std::vector<Place> places;
    std::optional<Turn> cut;  // bytes before the message, and before the one after it
    bool same = true;
  };
  std::vector<Kind> kinds;
  std::map<size_t, std::pair<size_t, Place>> chosen;  // by message, so that the first fault is named
  for (auto& [name, places] : kinds_of(conversation, whole)) {
    const size_t count = places.size();
    for (const size_t number : {size_t{0}, std::min<size_t>(1, count - 1), count / 2,
                                count - std::min<size_t>(2, count), count - 1})
      chosen[places[number].message] = {kinds.size(), places[number]};
    kinds.push_back({.places = std::move(places), .cut = {}});
  }
  for (const auto& [message, one] : chosen) {
    const auto& [number, place] = one;
    Kind& kind = kinds[number];
    if (on_turn) on_turn();
    const size_t first = whole.first[message];
    const Turn turn = turn_of(conversation, message, whole, 0);
    const Turn cut{first - turn.first, place.next - turn.last};
    if (!kind.cut) kind.cut = cut;
    kind.same = kind.same && turn.first >= place.begin && turn.first <= first && turn.last >= place.end &&
                turn.last <= place.next && cut.first == kind.cut->first && cut.last == kind.cut->last;
  }
  std::map<size_t, Turn> turns;
  for (const Kind& kind : kinds)
    for (const Place& place : kind.places)
      if (kind.same)
        turns[place.message] = {whole.first[place.message] - present(kind.cut).first,
                                place.next - present(kind.cut).last};
  return turns;
}

std::vector<ChatTemplate::Turn> ChatTemplate::turns(const Conversation& conversation, const Shown& whole,
                                                    const std::vector<jinja::Span>& generated,
                                                    void (*on_turn)()) const {
  std::vector<Turn> turns;
  const auto& messages = conversation.messages;
  const size_t first = conversation.first_answer;
  if (template_.marks_generation()) {
    const size_t from =
        first < messages.size()
            ? *std::min_element(whole.first.begin() + static_cast<std::ptrdiff_t>(first), whole.first.end())
            : whole.text.size();
    for (const jinja::Span& span : generated)
      if (span.first < span.last && (first == 0 || span.last > from))
        turns.push_back({span.first, span.last});
    return turns;
  }
  const auto answers = static_cast<size_t>(std::ranges::count_if(messages, is_assistant));
  std::map<size_t, Turn> known;
  if (answers * messages.size() > options_.most_rendered) known = turns_by_kind(conversation, whole, on_turn);
  size_t done = 0;
  for (size_t i = first; i < messages.size(); ++i) {
    if (!is_assistant(messages[i])) continue;
    const auto found = known.find(i);
    const bool is_known = found != known.end() && found->second.first >= done;
    if (on_turn && !is_known) on_turn();
    const Turn turn = is_known ? found->second : turn_of(conversation, i, whole, done);
    done = turn.last;
    if (turn.first < turn.last) turns.push_back(turn);
  }
  return turns;
}

// The special token that ends a turn: the last one of its ids, or the last one that the template writes after
// what the assistant says, such as <|im_end|> before a line break; -1: none
int32_t ChatTemplate::end_token(const Text& text, Turn turn, const std::vector<int32_t>& ids) const {
  if (!ids.empty() && specials_.is_special(ids.back())) return ids.back();
  const Text part = text.part(turn.first, turn.last - turn.first);
  size_t said = 0;
  for (const Text::Run& run : part.runs())
    if (run.origin != jinja::kTemplate) said = run.end;
  int32_t last = -1;
  specials_.split(
      std::string_view(part.bytes()).substr(said), [](std::string_view) {},
      [&](const AddedToken& token) { last = token.id; });
  return last;
}

}  // namespace tessera
