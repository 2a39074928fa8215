// A BPE tokenizer, of bytes or of characters.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

// `json` is the tokenizer.json that `definition` was read from; if empty, one is written, which only a
// byte-level one can be. `where` begins the messages. `end_of_text` is an id, or -1 for none.
// Error: an expression or merges that are not valid.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(TokenizerDefinition definition, int32_t end_of_text,
                                              std::string json, const std::string& where);

// The id of a token by its content, of the added ones first; -1: there is none.
int32_t token_id(const TokenizerDefinition& definition, std::string_view content);

}  // namespace tessera
