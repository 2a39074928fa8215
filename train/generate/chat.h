// ChatTurns: the tokens of a conversation, message by message, up to where the model is to write.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"

namespace tessera {

class ChatTurns {
 public:
  // `chat` and `tokenizer` must outlive this object. `system`: a message before the first one; empty: none.
  ChatTurns(const ChatTemplate& chat, const Tokenizer& tokenizer, std::string system);

  struct Message {
    std::vector<int32_t> ids;
    bool whole;  // the tokens are the whole conversation's, not only what follows the tokens returned before
  };
  // Adds a message of the user. Returns tokens up to the beginning of its answer. Templates may write earlier
  // turns in another form, such as without their thoughts; then the conversation has to be read again.
  Message ask(const std::string& user);
  // Adds the answer to the message. `ended`: the model has also written the end of its turn.
  void answer(const std::string& text, bool ended);
  // After this the next message begins a new conversation.
  void forget();

  const ChatTemplate::TurnEnd& turn_end() const { return end_; }

 private:
  const ChatTemplate& chat_;
  const Tokenizer& tokenizer_;
  std::string system_;
  ChatTemplate::TurnEnd end_;
  Conversation talk_;
  std::string asked_, read_;  // the text up to the last answer, and with it; empty: none
};

}  // namespace tessera
