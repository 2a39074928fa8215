// The prompts of ./generate: from the command line, a file or standard input.
#pragma once

#include <string>
#include <vector>

#include "data/documents.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

struct Prompt {
  std::string text;
  std::string place;  // for messages: "--prompt", "prompts.txt:3"
};

struct PromptSources {
  std::vector<std::string> texts = {};        // "-": all of standard input, without a newline at its end
  std::string file = "";                      // "-": standard input; "": none
  InputFormat format = InputFormat::kByName;  // of the file; of standard input by name: text
};

// In this order. A text file has a prompt a line; JSON lines have it in "prompt", and other fields are
// ignored. Blank lines are skipped. Error: an empty prompt; a file that cannot be read or has no prompt;
// standard input named twice.
std::vector<Prompt> read_prompts(const PromptSources& sources);

// What the tokenizer's template puts before a text, and the text, in which names of special tokens are these
// tokens or text. Error: no token
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const Prompt& prompt, SpecialTokens special);

}  // namespace tessera
