// Tokens that files beside a tokenizer.json name, as transformers reads them.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "data/tokenizers/definition.h"

namespace tessera {

// `text`, which is the tokenizer.json `file` and makes `definition`, with the tokens that the folder's other
// files name; "": they name none that it lacks. These are the added_tokens_decoder of tokenizer_config.json,
// whose attributes of a token count, or, without one, added_tokens.json; and the special tokens, such as
// eos_token, of tokenizer_config.json and, without an added_tokens_decoder, of special_tokens_map.json. A
// special token without an id is that of the vocabulary, or gets the next id.
// Error, naming both files: a token has another id in tokenizer.json, its id has another token there, or is
// not the next free one, so that transformers would give the token another id.
std::string with_tokens_beside(std::string_view text, const TokenizerDefinition& definition,
                               const std::filesystem::path& folder, const std::string& file);

}  // namespace tessera
