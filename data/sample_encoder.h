// From pieces of inputs to token ids, and which of them count as targets.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/chat_template.h"
#include "data/document_index.h"
#include "data/documents.h"
#include "data/samples.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

// Which tokens count as targets: of texts all. Of prompts and conversations the completions and what
// assistants say, or all as well.
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
  std::optional<ChatTemplate> chat = {};  // none: a conversation is refused
  CountedLoss loss = CountedLoss::kCompletions;
  bool strict = false;  // refuse samples of which no token counts, instead of dropping them
  BytesWithoutToken bytes_without_token = BytesWithoutToken::kStop;
};

struct EncodedPiece {
  std::vector<int32_t> ids;
  DocumentMarks marks;
  int64_t documents = 0;             // that end in the piece
  int64_t conversations = 0;         // of these
  std::vector<std::string> dropped;  // file:line of samples of which no token would count
  int64_t skipped_bytes = 0;         // for which the vocabulary has no token
};

// Writes a document as
//   text          what the tokenizer's template puts before and after a text around it, end of text
//   completion    the same around prompt and completion, which are encoded one by one; the completion counts,
//                 and what follows it
//   conversation  the parts of its template, end of text
// Special tokens come from the templates alone: their names in a document are text.
class SampleEncoder {
 public:
  // Error: what check_chat_template throws.
  explicit SampleEncoder(const SampleEncoderOptions& options);

  // Any number of threads may call it. Error: what parse_sample throws; a conversation without a chat
  // template; with `strict` a sample of which no token counts; a byte without a token, unless it is skipped.
  EncodedPiece encode(const Piece& piece) const;

 private:
  void add_line(std::string_view line, const std::string& input, int64_t number, EncodedPiece& out) const;
  void add_ids(std::span<const int32_t> ids, bool counts, EncodedPiece& out) const;
  void add_text(std::string_view text, bool counts, EncodedPiece& out) const;
  void add_part(const ChatPart& part, EncodedPiece& out) const;
  void note(int64_t first, bool counts, EncodedPiece& out) const;
  void begin(EncodedPiece& out) const { out.marks.starts.push_back(std::ssize(out.ids)); }
  void end(bool counts, bool after_text, EncodedPiece& out) const;

  SampleEncoderOptions options_;
  std::map<std::string, std::vector<int32_t>, std::less<>> markers_;  // of the chat template: their ids
};

}  // namespace tessera
