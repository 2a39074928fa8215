// Continuation: one text that a model writes, from its first token to the reason why it ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/words.h"
#include "kernels/sampling.h"
#include "train/generate/text_stream.h"

namespace tessera {

enum class Ended : uint8_t { kEndOfText, kStopString, kLength, kContext, kInterrupted };
constexpr auto words_of(Ended) {  // of "ended" in the output of --json
  return std::array{Word{"end of text", Ended::kEndOfText}, Word{"stop string", Ended::kStopString},
                    Word{"length", Ended::kLength}, Word{"context full", Ended::kContext},
                    Word{"interrupted", Ended::kInterrupted}};
}

// What is the same for all texts of a call
struct GenerationRule {
  SamplingRule sampling = {};
  uint64_t seed = 0;
  int64_t tokens = 0;              // the most of a continuation
  std::vector<int32_t> ends = {};  // tokens that end it, and are no part of it
  TextStream::Options text = {};
};

class Continuation {
 public:
  Continuation(const Tokenizer& tokenizer, const GenerationRule& rule);

  // A token as Decoder::next() drew it; `full`: the cache has no room to read it. Returns further text.
  // Error: logits that are no numbers (kBadLogits).
  std::string add(int32_t token, bool full);
  // Ends it before its time, unless it has ended. Returns the rest of the text.
  std::string interrupt();

  std::optional<Ended> ended() const { return ended_; }
  int64_t tokens() const { return tokens_; }    // without the token that ended it
  int32_t last_token() const { return last_; }  // with it; -1: none was added

 private:
  std::string end(Ended why);

  const GenerationRule& rule_;
  TextStream stream_;
  std::optional<Ended> ended_;
  int64_t tokens_ = 0;
  int32_t last_ = -1;
};

}  // namespace tessera
