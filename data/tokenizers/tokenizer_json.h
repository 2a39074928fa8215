// tokenizer.json, the format of Hugging Face's `tokenizers`.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/definition.h"

namespace tessera {

// More than the largest vocabularies have; a table of ids is as long as the largest id.
inline constexpr int64_t kMostTokenIds = int64_t{1} << 22;

// A vocabulary: the ids of tokens, which are written in the byte alphabet or are contents of added tokens.
using TokenIds = std::map<std::string, int32_t, std::less<>>;

// `text` is the file `name`. Error: not JSON; anything that is not known or would change ids in a way that is
// not known, with file, place within the JSON, value, and what is known; tokens, ids and merges that
// contradict one another.
TokenizerDefinition read_tokenizer_json(std::string_view text, const std::string& name);

// A file that Hugging Face's `tokenizers` reads as the same tokenizer.
std::string tokenizer_json(const TokenizerDefinition& definition);

// The parts that vocab.json and tokenizer_config.json have, too.
TokenIds read_vocabulary(const nlohmann::json& vocabulary, const std::string& where);
AddedToken read_added_token(const nlohmann::json& token, int32_t id, const std::string& where);
// Fills `tokens`. Error: a token with a character that is not in the byte alphabet and that is not added.
void set_tokens(TokenizerDefinition& definition, const TokenIds& ids, const std::string& where);
// The merge of two tokens. Error: one of them, or both together, is no token.
Merge merge_of(const TokenIds& ids, std::string_view left, std::string_view right, const std::string& where);

}  // namespace tessera
