#include "data/chat_template.h"

#include <algorithm>

#include "data/tokenizers/added_tokens.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

class Parts {
 public:
  void marker(const char* text, bool counts) { parts_.push_back({text, true, counts}); }
  void text(std::string_view text, bool counts) {
    if (text.empty()) return;
    const bool goes_on = !parts_.empty() && !parts_.back().is_marker && parts_.back().counts == counts;
    if (!goes_on) parts_.push_back({.text = "", .counts = counts});
    parts_.back().text += text;
  }
  std::vector<ChatPart> take() { return std::move(parts_); }

 private:
  std::vector<ChatPart> parts_;
};

void add_chatml(Parts& parts, const ChatMessage& message, bool counts) {
  parts.marker("<|im_start|>", false);
  parts.text(std::string(name_of(message.role)) + "\n", false);
  parts.text(message.content, counts);
  parts.marker("<|im_end|>", counts);
  parts.text("\n", false);
}

void add_llama3(Parts& parts, const ChatMessage& message, bool counts) {
  parts.marker("<|start_header_id|>", false);
  parts.text(name_of(message.role), false);
  parts.marker("<|end_header_id|>", false);
  parts.text("\n\n", false);
  parts.text(without_outer_blanks(message.content), counts);
  parts.marker("<|eot_id|>", counts);
}

}  // namespace

std::vector<ChatPart> render(ChatTemplate chat, const Conversation& conversation) {
  Parts parts;
  if (chat == ChatTemplate::kLlama3) parts.marker("<|begin_of_text|>", false);
  for (const ChatMessage& message : conversation) {
    const bool counts = message.role == Role::kAssistant;
    (chat == ChatTemplate::kLlama3 ? add_llama3 : add_chatml)(parts, message, counts);
  }
  return parts.take();
}

std::string_view jinja_of(ChatTemplate chat) {
  if (chat == ChatTemplate::kChatMl)
    return "{%- for message in messages -%}"
           "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
           "{%- endfor -%}"
           "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";
  return "{{- '<|begin_of_text|>' -}}"
         "{%- for message in messages -%}"
         "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + (message.content | trim) + "
         "'<|eot_id|>' }}"
         "{%- endfor -%}"
         "{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
         "{%- endif -%}";
}

std::vector<std::string_view> markers_of(ChatTemplate chat) {
  if (chat == ChatTemplate::kChatMl) return {"<|im_start|>", "<|im_end|>"};
  return {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"};
}

std::optional<ChatTemplate> find_chat_template(const Tokenizer& tokenizer) {
  std::optional<ChatTemplate> found;
  for (const ChatTemplate chat : values_with_words<ChatTemplate>()) {
    if (tokenizer.special_token(markers_of(chat)[0]) < 0) continue;
    if (found) return std::nullopt;
    found = chat;
  }
  return found;
}

void check_chat_template(ChatTemplate chat, const Tokenizer& tokenizer) {
  std::vector<std::string_view> missing;
  const auto markers = markers_of(chat);
  for (const std::string_view marker : markers)
    if (tokenizer.special_token(marker) < 0) missing.push_back(marker);
  const bool as_text = chat == ChatTemplate::kChatMl && missing.size() == markers.size();
  check(missing.empty() || as_text,
        "the chat template {} needs the special tokens {}, which the tokenizer {} does not have; use one "
        "that has "
        "them, or --chat-template chatml, whose markers may be ordinary text",
        name_of(chat), join_words(missing, " and "), tokenizer.name());
  for (const std::string_view marker : missing)
    check(tokenizer.encode(marker).size() > 1,
          "the tokenizer {} takes {} in any text for a token that is not special, so the text of a message "
          "could "
          "forge it; mark it as special in the tokenizer's files",
          tokenizer.name(), marker);
}

}  // namespace tessera
