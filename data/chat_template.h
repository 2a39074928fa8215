// How a conversation is written as one text, as the models' authors published it.
//
//   chatml (Qwen)  <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n
//   llama3         <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>...
//
// The loss counts on what an assistant writes: its content and the marker that ends its turn. No system
// message is added. Llama 3's format takes the blanks around a content away.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/samples.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

enum class ChatTemplate : uint8_t { kChatMl, kLlama3 };
constexpr auto words_of(ChatTemplate) {
  return std::array{Word{"chatml", ChatTemplate::kChatMl}, Word{"llama3", ChatTemplate::kLlama3}};
}

// A part of the text of a conversation
struct ChatPart {
  std::string text;
  bool is_marker = false;  // a special token, or its name where the tokenizer has none
  bool counts = false;     // in the loss
  bool operator==(const ChatPart&) const = default;
};
// No text is empty, and no two texts that count alike follow each other.
std::vector<ChatPart> render(ChatTemplate chat, const Conversation& conversation);

// The template in Jinja, for chat_template of tokenizer_config.json: it writes what render() does, and with
// add_generation_prompt the start of an assistant's turn.
std::string_view jinja_of(ChatTemplate chat);

// The special tokens of a template
std::vector<std::string_view> markers_of(ChatTemplate chat);

// The template whose special tokens the tokenizer has; none if it has those of none, or of both.
std::optional<ChatTemplate> find_chat_template(const Tokenizer& tokenizer);

// Error: the tokenizer has some of the template's special tokens but not all; it has none, and the template
// is llama3 (chatml may be ordinary text); it has them as tokens that are not special, which a text could
// forge.
void check_chat_template(ChatTemplate chat, const Tokenizer& tokenizer);

}  // namespace tessera
