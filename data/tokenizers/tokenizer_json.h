// tokenizer.json, the format of Hugging Face's `tokenizers`.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizers/definition.h"
#include "data/tokenizers/token_ids.h"

namespace tessera {

// `text` is the file `name`. Error: not JSON; anything that is not known or would change ids in a way that is
// not known, with file, place within the JSON, value, and what is known; tokens, ids and merges that
// contradict one another.
TokenizerDefinition read_tokenizer_json(std::string_view text, const std::string& name);

// A file that Hugging Face's `tokenizers` reads as the same tokenizer. Error: one of characters.
std::string tokenizer_json(const TokenizerDefinition& definition);

// The parts that vocab.json and tokenizer_config.json have, too.
// A whole vocab.json: tokens, which are written in the byte alphabet or are contents of added ones, and ids.
TokenIds read_vocabulary(std::string_view text, const std::string& name);
AddedToken read_added_token(const nlohmann::json& token, int32_t id, const std::string& where);
nlohmann::ordered_json added_tokens_json(std::span<const AddedToken> tokens);  // the list "added_tokens"
// Fills `tokens` and `unreachable`. Error: an added token with another id, or with the id of another token.
void set_tokens(TokenizerDefinition& definition, const TokenIds& ids, const std::string& where);
// The merge of two tokens. Error: one of them, or both together, is no token; `where` begins the message.
Merge merge_of(const TokenIds& ids, std::string_view left, std::string_view right,
               const std::function<std::string()>& where);

}  // namespace tessera
