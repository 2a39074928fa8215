// Turns pieces of inputs into token ids, and decides which of these count as targets.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/document_index.h"
#include "data/documents.h"
#include "data/samples.h"
#include "data/tokenizers/special_token_finder.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

// Which tokens count as targets. In texts all do. In prompts and conversations the completions do, and what
// assistants say; or all do as well.
enum class CountedLoss : uint8_t { kCompletions, kAll };
constexpr auto words_of(CountedLoss) {
  return std::array{Word{"completions", CountedLoss::kCompletions}, Word{"all", CountedLoss::kAll}};
}

// What is done with a byte for which the vocabulary has no token
enum class BytesWithoutToken : uint8_t { kStop, kSkip };
constexpr auto words_of(BytesWithoutToken) {
  return std::array{Word{"stop", BytesWithoutToken::kStop}, Word{"skip", BytesWithoutToken::kSkip}};
}

struct SampleEncoderOptions {
  const Tokenizer* tokenizer = nullptr;  // outlives the encoder; it has an end of text
  std::string text_field = "text";
  const ChatTemplate* chat = nullptr;              // null: a conversation is refused
  const ChatTemplate* chat_with_tools = nullptr;   // for conversations with tools, if that is another
                                                   // template
  std::string no_chat = "";                        // the reason why there is no template
  SpecialTokens special = SpecialTokens::kAsText;  // how names of special tokens in texts are read
  CountedLoss loss = CountedLoss::kCompletions;
  bool strict = false;  // whether samples that would be dropped are refused
  BytesWithoutToken bytes_without_token = BytesWithoutToken::kStop;
};

struct EncodedPiece {
  std::vector<int32_t> ids;
  DocumentMarks marks;
  int64_t documents = 0;      // documents that end in the piece
  int64_t conversations = 0;  // samples that are conversations
  int64_t pairs = 0;          // pairs of them: a chosen document, and the rejected one that follows it
  int64_t desirable = 0, undesirable = 0;  // samples that are answers with a label
  std::string first_pair, first_unpaired;  // file:line of the first pair, and of the first other document
  std::vector<std::string> dropped;        // file:line of samples in which no token would count
  std::vector<std::string> unfit;          // file:line of conversations that their template does not fit
  std::string why_unfit;                   // the reason for the first of these
  struct Refused {
    std::string place, why;
  };
  std::vector<Refused> refused;            // conversations for which their template raises an error
  std::vector<std::string> lost_thoughts;  // file:line of conversations with EncodedChat::lost_thoughts
  int64_t special_names = 0;               // how many names of special tokens are in texts
  std::string first_special_name;          // file:line
  std::vector<std::string> joined;         // file:line of conversations with EncodedChat::joined
  std::set<int32_t> turn_ends;             // the special tokens that end what counts in conversations
  int64_t skipped_bytes = 0;               // bytes for which the vocabulary has no token
};

// Writes a document as
//   text          with what the tokenizer's template puts before and after a text; then the end of text
//   completion    the same around prompt and completion, which are encoded one by one; the completion counts,
//                 and so does what follows it
//   conversation  as ChatTemplate does; then the end of text, unless the template ends with it. This end of
//                 text counts if it ends an assistant's turn that no other special token ends
//   preference    two documents, each written as a completion or a conversation. In an empty completion what
//                 follows it counts. If one side of a pair is dropped, the pair is dropped
// A sample with the weight 0 is dropped, even with `strict`. Special tokens come only from the templates,
// unless
// `special` says otherwise.
class SampleEncoder {
 public:
  explicit SampleEncoder(const SampleEncoderOptions& options);

  // Several threads may call it. Error: as parse_sample; a conversation without a chat template; as
  // ChatTemplate::encode(); with `strict`, a sample in which no token counts, or that its template does not
  // fit or refuses; a byte without a token, unless such bytes are skipped; a signal that asks the program to
  // stop.
  EncodedPiece encode(const Piece& piece) const;

 private:
  void add_completion(const Completion& completion, const std::string& place, EncodedPiece& out) const;
  void add_answer(const Completion& completion, const std::string& place, EncodedPiece& out) const;
  void add_labelled(const Labelled& sample, const std::string& place, EncodedPiece& out) const;
  void add_preference(const Preference& pair, const std::string& place, EncodedPiece& out) const;
  void add_line(std::string_view line, const std::string& input, int64_t number, EncodedPiece& out) const;
  void add_ids(std::span<const int32_t> ids, bool counts, EncodedPiece& out) const;
  void encode_text(std::string_view text, SpecialTokens special, TextPlace begin, std::vector<int32_t>& ids,
                   EncodedPiece& out) const;
  void add_document_text(std::string_view text, TextPlace begin, const std::string& place, bool counts,
                         EncodedPiece& out) const;
  void add_conversation(const Conversation& conversation, const std::string& place, EncodedPiece& out) const;
  void drop(const std::string& place, const char* why, EncodedPiece& out) const;
  void note(int64_t first, bool counts, EncodedPiece& out) const;
  void weigh(int64_t first, double weight, EncodedPiece& out) const;
  void begin(EncodedPiece& out) const {
    out.marks.starts.push_back(std::ssize(out.ids));
    out.marks.labels.push_back(DocumentLabel::kNone);
  }
  void end(EncodedPiece& out) const;

  SampleEncoderOptions options_;
  SpecialTokenFinder specials_;
};

}  // namespace tessera
