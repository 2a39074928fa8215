// The tokenizer as fields of a GGUF file: byte-level BPE is llama.cpp's tokenizer model "gpt2", BPE over
// characters its model "llama". That one has no list of merges: it merges two neighbours if both together are
// a token, first those whose token has the highest score, as SentencePiece does.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "data/tokenizers/definition.h"
#include "model/formats/gguf.h"

namespace tessera {

// llama.cpp's name for how a byte-level tokenizer splits texts, such as "gpt-2", "llama-bpe", "qwen2". Error:
// it knows no such way, with what the tokenizer does
std::string llama_cpp_pre_tokenizer(const TokenizerDefinition& definition);

// llama.cpp takes a file with "phi3" or "phi-3" in its general.name, in letters of any case, for one with the
// special tokens of Phi-3, and refuses it if they are not among `tokens`. Returns a name that it takes: the
// same, or with a blank before the 3.
std::string name_for_llama_cpp(std::string name, const std::vector<std::string>& tokens);

struct GgufTokenizer {
  std::vector<GgufField> fields;
  std::vector<std::string> notices;  // what llama.cpp does in another way
};
// `vocab_size`: of the model; ids without a token are filled. `token_ids`: bos_token_id, eos_token_id and
// pad_token_id, as in config.json. `chat_template`: in Jinja, or "". Error: what llama.cpp cannot express
GgufTokenizer gguf_tokenizer(const TokenizerDefinition& definition, int64_t vocab_size,
                             const nlohmann::json& token_ids, const std::string& chat_template);

}  // namespace tessera
