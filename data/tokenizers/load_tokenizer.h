// Finds and reads the files of a tokenizer.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "data/tokenizers/tokenizer.h"

namespace tessera {

inline constexpr const char* kTokenizerFile = "tokenizer.json";
// What load_tokenizer() takes, for the help of programs
inline constexpr const char* kTokenizerSources =
    "A folder with tokenizer.json, vocab.json and merges.txt, or encoder.json and vocab.bpe; one of these "
    "files; or bytes";

// Whether the folder holds files that load_tokenizer() knows.
bool has_tokenizer(const std::filesystem::path& folder);

// Which token ends texts: its content, or its id, or neither.
struct EndOfText {
  std::string content = "";
  int64_t id = -1;  // of a tokenizer.json beside prepared data, which is whole: no other file adds tokens
};

// `source` is one of
//   bytes                  the tokenizer `bytes`
//   a tokenizer.json       whatever its name, other than those below
//   vocab.json, merges.txt or encoder.json, vocab.bpe: one of a pair, with the other beside it
//   a folder               its tokenizer.json, else one of the pairs
// A tokenizer.json gets the tokens that other files of its folder name: see with_tokens_beside().
// A pair does not say how texts are split: tokenizer_config.json beside it does by its tokenizer_class (GPT-2
// or Qwen2), else as GPT-2 does; its added_tokens_decoder has the added tokens, else <|endoftext|> is one, if
// it is in the vocabulary.
// The end of text is `end_of_text`, or, if that is neither, the first of <|endoftext|>,
// <|end_of_text|> and </s> that is a special token, else the eos_token of tokenizer_config.json, else none.
// Error: no such files; files that cannot be read, or hold what is not known, with file and place; no token
// `end_of_text`.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& source, const EndOfText& end_of_text = {});

}  // namespace tessera
