// A conversation as token ids, written by a chat template, and which of them an assistant writes.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/chat/chat_form.h"
#include "data/chat/conversation.h"
#include "data/chat/jinja.h"
#include "data/tokenizers/special_token_finder.h"
#include "data/tokenizers/tokenizer.h"
#include "kernels/base/check.h"

namespace tessera {

struct ChatOptions {
  jinja::Dict values = {};  // variables of the template: special tokens, and what the user sets
  std::tm now = {};         // what strftime_now() says
  SpecialTokens special = SpecialTokens::kAsText;  // what names of special tokens in messages are
  // Messages times answers up to which each turn is rendered: see turns.cpp
  size_t most_rendered = 1 << 14;
};

struct ChatPart {
  std::vector<int32_t> ids;
  bool counts;        // an assistant writes it, and the end of its turn
  double weight = 1;  // of the loss of what counts, above 0
};
struct EncodedChat {
  std::vector<ChatPart> parts;     // encoded one by one: each turn that counts, and what is between them
  bool has_targets = false;        // an assistant says something
  std::vector<int32_t> turn_ends;  // special tokens that end what counts, each once
  // The text ends with what counts, and no special token ends that: the weight of what counts; else 0
  double ends_with_target = 0;
  int64_t special_names = 0;  // of special tokens, within messages
  int64_t joined =
      0;  // turns whose first token would hold the end of their header, were the text encoded whole
  bool lost_thoughts = false;  // an assistant has some, and the template reads none
};

// A conversation that cannot be trained on in the form that the template gives it
class UnfitConversation : public Error {
  using Error::Error;
};

// One that the template raises an error for
class RefusedConversation : public UnfitConversation {
  using UnfitConversation::UnfitConversation;
};

// Turns a text, which stands at this place, into ids: appends them.
using EncodeText = std::function<void(std::string_view, SpecialTokens, TextPlace, std::vector<int32_t>&)>;

// Special tokens come from the template alone, unless the options say otherwise: in messages their names are
// text. What counts is what {% generation %} marks in the template. Without such marks an assistant's turn
// counts from where the messages before it end, with the beginning of an answer (add_generation_prompt), up
// to the last special token that the template writes after its content. A turn is encoded apart from what is
// before it, since a model that answers continues that.
class ChatTemplate {
 public:
  // `tokenizer` outlives it. Error: as jinja::Template and check_markers().
  ChatTemplate(ChatForm form, const Tokenizer& tokenizer, ChatOptions options);

  const ChatForm& form() const { return form_; }
  jinja::Dict special_tokens() const;  // bos_token and others that the template can write

  // Any number of threads may call it. `all`: everything counts, and the text is encoded whole.
  // Error: a message with fields that the template does not read; a signal that asks the program to stop.
  // RefusedConversation: what the template raises. UnfitConversation, unless all counts: a message of which
  // it writes nothing; messages that it writes in another form once an assistant's turn follows them.
  // A turn whose message has the weight 0 does not count.
  EncodedChat encode(const Conversation& conversation, bool all, const EncodeText& encode_text) const;

  // The text up to where the model is to write
  std::string prompt_text(const Conversation& conversation) const;
  // Its ids from the byte `from` on, as encode() makes them for an answer that follows
  std::vector<int32_t> prompt(const Conversation& conversation, size_t from = 0) const;
  // What ends an answer: a special token's id, or, where that is text, its marker; neither: the template
  // ends turns by none
  struct TurnEnd {
    int32_t token = -1;
    std::string marker;
  };
  TurnEnd turn_end() const;

 private:
  struct Turn {
    size_t first, last;  // bytes of the rendered text
  };
  static double weight_of(const Conversation& conversation, const jinja::Text& said);
  jinja::Rendered render(const Conversation& conversation, size_t messages, bool begin_answer) const;
  void check_read(const Conversation& conversation) const;
  bool reads_field(std::string_view name) const;
  Conversation with_thoughts(Conversation conversation) const;
  bool loses_thoughts(const Conversation& conversation) const;
  // A text, and where it has the bytes of each message: from `first` to `last`, which is 0 where it has none
  struct Shown {
    jinja::Text text;
    std::vector<size_t> first, last;
  };
  static Shown shown(jinja::Text text, size_t messages);
  void check_written(const Conversation& conversation, const Shown& whole) const;
  // Where a turn may begin and end: what the template writes before and after the message, without numbers,
  // which may be the data's. `next`: where the message after it begins
  struct Place {
    size_t message, begin, end, next;
  };
  static std::map<std::string, std::vector<Place>> kinds_of(const Conversation& conversation,
                                                            const Shown& whole);
  std::map<size_t, Turn> turns_by_kind(const Conversation& conversation, const Shown& whole,
                                       void (*on_turn)()) const;
  // In time linear in the conversation, as turns.cpp says. `on_turn` is called while it works.
  std::vector<Turn> turns(const Conversation& conversation, const Shown& whole,
                          const std::vector<jinja::Span>& generated, void (*on_turn)() = nullptr) const;
  Turn turn_of(const Conversation& conversation, size_t message, const Shown& whole, size_t done) const;
  size_t begin_of_turn(const Conversation& conversation, size_t message, const Shown& whole) const;
  size_t end_of_turn(const Conversation& conversation, size_t message, const Shown& whole,
                     size_t begin) const;
  size_t end_of_last_token(std::string_view text) const;
  int32_t end_token(const jinja::Text& text, Turn turn, const std::vector<int32_t>& ids) const;
  bool joins(const jinja::Text& text, size_t at) const;
  // What is known where a part begins
  struct Begin {
    TextPlace place = TextPlace::kStart;
    bool strips = false;  // the token before takes the blanks after it
  };
  Begin begin_at(const jinja::Text& text, size_t at) const;
  // Afterwards `begin` is that of the next part.
  void encode_part(const jinja::Text& text, Turn part, const EncodeText& encode_text, Begin& begin,
                   std::vector<int32_t>& ids) const;
  void encode_around_markers(std::string_view bytes, std::string_view own, const EncodeText& encode_text,
                             Begin& begin, std::vector<int32_t>& ids) const;

  ChatForm form_;
  jinja::Template template_;
  const Tokenizer& tokenizer_;
  SpecialTokenFinder specials_;
  ChatOptions options_;
};

}  // namespace tessera
