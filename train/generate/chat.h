// ChatTurns: the tokens of a conversation up to where the model is to write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

class ChatTurns {
 public:
  // Error: as check_chat_template()
  ChatTurns(ChatTemplate chat, const Tokenizer& tokenizer);

  // A conversation with one message of a user, up to the beginning of the answer. `system`: a message
  // before it; empty: none.
  std::vector<int32_t> opening(const std::string& system, const std::string& user) const;
  // What follows an answer: the marker of its end, unless the model has written it, a message of the user,
  // and up to the beginning of the next answer
  std::vector<int32_t> next(const std::string& user, bool has_end_marker) const;

  // The marker that ends an answer: a token, or -1 where the tokenizer has none and it is a text
  int32_t end_token() const { return tokenizer_.special_token(end_marker_); }
  const std::string& end_marker() const { return end_marker_; }

 private:
  std::vector<int32_t> encode(const std::vector<ChatPart>& parts) const;

  ChatTemplate chat_;
  const Tokenizer& tokenizer_;
  std::string end_marker_;
};

// The template that `named` says, or that whose special tokens the tokenizer has. Error: none is named, and
// it has those of none.
ChatTemplate choose_chat_template(std::optional<ChatTemplate> named, const Tokenizer& tokenizer);

}  // namespace tessera
