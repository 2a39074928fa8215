// Continuation: one text that a model writes, from its first token to its end, and why it ends there.
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

// What all texts of a call have in common
struct GenerationRule {
  SamplingRule sampling = {};
  uint64_t seed = 0;
  int64_t tokens = 0;              // the most tokens of a continuation
  std::vector<int32_t> ends = {};  // tokens that end it; they are not part of its text
  TextStream::Options text = {};
};

class Continuation {
 public:
  Continuation(const Tokenizer& tokenizer, const GenerationRule& rule);

  // Adds a token that Decoder::next() drew. `full`: the cache has no room to read it. Returns further text.
  // Error: logits that are not numbers (kBadLogits).
  std::string add(int32_t token, bool full);
  // Ends the text early, unless it has ended. Returns the rest of it.
  std::string interrupt();

  std::optional<Ended> ended() const { return ended_; }
  int64_t tokens() const { return tokens_; }    // without a token that ended it
  int32_t last_token() const { return last_; }  // also one that ended it; -1: none was added

 private:
  std::string end(Ended why);

  const GenerationRule& rule_;
  TextStream stream_;
  std::optional<Ended> ended_;
  int64_t tokens_ = 0;
  int32_t last_ = -1;
};

}  // namespace tessera
