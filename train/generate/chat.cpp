#include "train/generate/chat.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace tessera {
namespace {

using Parts = std::vector<ChatPart>;

bool counts(const ChatPart& part) { return part.counts; }

// Of a conversation that ends with an empty answer: up to the beginning of that answer. In it the marker that
// ends the answer is the last part that counts in the loss.
Parts without_last_end(Parts parts) {
  const auto end = std::find_if(parts.rbegin(), parts.rend(), counts);
  parts.erase(end.base() - 1, parts.end());
  return parts;
}

}  // namespace

ChatTemplate choose_chat_template(std::optional<ChatTemplate> named, const Tokenizer& tokenizer) {
  if (!named) named = find_chat_template(tokenizer);
  check(named.has_value(),
        "--chat: the tokenizer {} has not the special tokens of exactly one chat template (<|im_start|> of "
        "chatml, <|start_header_id|> of llama3). Name the template that the model was trained with: "
        "--chat-template chatml",
        tokenizer.name());
  return *named;
}

ChatTurns::ChatTurns(ChatTemplate chat, const Tokenizer& tokenizer) : chat_(chat), tokenizer_(tokenizer) {
  check_chat_template(chat, tokenizer);
  const Parts answer = render(chat, {{Role::kAssistant, ""}});
  end_marker_ = std::find_if(answer.rbegin(), answer.rend(), counts)->text;
}

std::vector<int32_t> ChatTurns::encode(const Parts& parts) const {
  std::vector<int32_t> ids;
  for (const ChatPart& part : parts)
    tokenizer_.encode(part.text, part.is_marker ? SpecialTokens::kMatched : SpecialTokens::kAsText, ids);
  return ids;
}

std::vector<int32_t> ChatTurns::opening(const std::string& system, const std::string& user) const {
  Conversation conversation;
  if (!system.empty()) conversation.push_back({Role::kSystem, system});
  conversation.push_back({Role::kUser, user});
  conversation.push_back({Role::kAssistant, ""});
  return encode(without_last_end(render(chat_, conversation)));
}

std::vector<int32_t> ChatTurns::next(const std::string& user, bool has_end_marker) const {
  Parts parts =
      without_last_end(render(chat_, {{Role::kAssistant, ""}, {Role::kUser, user}, {Role::kAssistant, ""}}));
  const auto end_of_answer = std::ranges::find_if(parts, counts);
  parts.erase(parts.begin(), end_of_answer + (has_end_marker ? 1 : 0));
  return encode(parts);
}

}  // namespace tessera
