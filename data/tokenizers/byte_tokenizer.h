// The tokenizer `bytes`.
#pragma once

#include <memory>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

std::unique_ptr<Tokenizer> make_byte_tokenizer();

// Byte-level BPE without merges, for programs that read no other: it gives every text the ids of `bytes`, and
// <|endoftext|> is the end of text.
TokenizerDefinition bytes_as_bpe();

}  // namespace tessera
