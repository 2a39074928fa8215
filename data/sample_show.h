// What ./prepare --show prints: samples as text, with the part that counts marked.
#pragma once

#include <cstdint>
#include <string>

#include "data/sample_encoder.h"

namespace tessera {

// Prints at most `most` samples on standard output. Encoder and tokenizer must outlive it.
class SampleShow {
 public:
  SampleShow(const SampleEncoder& encoder, const Tokenizer& tokenizer, int64_t most)
      : encoder_(encoder), tokenizer_(tokenizer), most_(most) {}

  bool needs_more() const { return shown_ < most_; }
  // Prints the samples of a piece; if a text is longer than a piece, only its beginning. Returns whether the
  // input may have more samples to show. Error: as SampleEncoder::encode().
  bool add(const Piece& piece);

 private:
  void print(const Piece& sample, const std::string& place);

  const SampleEncoder& encoder_;
  const Tokenizer& tokenizer_;
  int64_t most_, shown_ = 0;
};

}  // namespace tessera
