// The prompts of ./generate, from the command line, a file or standard input.
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
  std::vector<std::string> texts = {};        // "-": all of standard input, without a newline at the end
  std::string file = "";                      // "-": standard input; "": none
  InputFormat format = InputFormat::kByName;  // of the file; standard input is text by default
};

// The prompts, in the order of these fields. A text file has one prompt in each line. JSON lines have it in
// "prompt"; other fields are ignored. Blank lines are skipped. Error: a prompt is empty; a file cannot be
// read or has no prompt; standard input is named twice.
std::vector<Prompt> read_prompts(const PromptSources& sources);

// What the tokenizer's template puts before a text, then the text. Names of special tokens in the text become
// these tokens or stay text. Error: there is no token
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const Prompt& prompt, SpecialTokens special);

}  // namespace tessera
