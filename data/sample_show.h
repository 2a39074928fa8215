// Samples as text, with the part that counts marked: what ./prepare --show prints.
#pragma once

#include <cstdint>
#include <string>

#include "data/sample_encoder.h"

namespace tessera {

// Prints at most `most` samples on standard output. Encoder and tokenizer outlive it.
class SampleShow {
 public:
  SampleShow(const SampleEncoder& encoder, const Tokenizer& tokenizer, int64_t most)
      : encoder_(encoder), tokenizer_(tokenizer), most_(most) {}

  bool needs_more() const { return shown_ < most_; }
  // The samples of a piece; of a text that is longer than a piece, its beginning. Returns whether the input
  // may have more samples to show. Error: what SampleEncoder::encode() throws.
  bool add(const Piece& piece);

 private:
  void print(const Piece& sample, const std::string& place);

  const SampleEncoder& encoder_;
  const Tokenizer& tokenizer_;
  int64_t most_, shown_ = 0;
};

}  // namespace tessera
