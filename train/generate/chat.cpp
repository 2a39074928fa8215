#include "train/generate/chat.h"

#include <utility>

namespace tessera {

ChatTurns::ChatTurns(const ChatTemplate& chat, const Tokenizer& tokenizer, std::string system)
    : chat_(chat), tokenizer_(tokenizer), system_(std::move(system)), end_(chat.turn_end()) {}

ChatTurns::Message ChatTurns::ask(const std::string& user) {
  if (talk_.messages.empty() && !system_.empty()) talk_.add("system", system_);
  talk_.add("user", user);
  asked_ = chat_.prompt_text(talk_);
  const bool follows = !read_.empty() && asked_.starts_with(read_);
  return {.ids = chat_.prompt(talk_, follows ? read_.size() : 0), .whole = !follows};
}

void ChatTurns::answer(const std::string& text, bool ended) {
  talk_.add(kAssistantRole, text);
  read_ = asked_ + text;
  if (ended) read_ += end_.token >= 0 ? tokenizer_.token_text(end_.token, true) : end_.marker;
}

void ChatTurns::forget() {
  talk_ = {};
  read_.clear();
}

}  // namespace tessera
