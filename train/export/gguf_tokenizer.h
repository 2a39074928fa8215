// Writes a tokenizer as fields of a GGUF file. Byte-level BPE is llama.cpp's tokenizer model "gpt2", and BPE
// over characters its model "llama". The model "llama" has no list of merges: it merges two neighbours if
// both together are a token. As in SentencePiece, the token with the highest score is made first.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizers/definition.h"
#include "model/formats/gguf.h"

namespace tessera {

// llama.cpp's name for how a byte-level tokenizer splits texts, such as "gpt-2", "llama-bpe", "qwen2". Error:
// llama.cpp does not know this way; the message says what the tokenizer does
std::string llama_cpp_pre_tokenizer(const TokenizerDefinition& definition);

// If the general.name of a file has "phi3" or "phi-3" in it, in letters of any case, llama.cpp assumes that
// it has the special tokens of Phi-3, and refuses the file if these are not among `tokens`. Returns a name
// that llama.cpp accepts: `name`, or `name` with a blank before the 3.
std::string name_for_llama_cpp(std::string name, const std::vector<std::string>& tokens);

struct GgufTokenizer {
  std::vector<GgufField> fields;
  std::vector<std::string> notices;  // what llama.cpp does differently
};
// `vocab_size`: of the model; ids without a token get filler tokens. `token_ids`: bos_token_id, eos_token_id
// and pad_token_id, as in config.json. `chat_template`: in Jinja, or "". Error: what llama.cpp cannot express
GgufTokenizer gguf_tokenizer(const TokenizerDefinition& definition, int64_t vocab_size,
                             const nlohmann::json& token_ids, const std::string& chat_template);

}  // namespace tessera
