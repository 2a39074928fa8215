// What a user says of the chat template: its name, its variables, the date.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"

namespace tessera {

class Options;

struct ChatRequest {
  std::string named = "";  // chatml, llama3, a file, or the name of one of the folder's; "": its usual one
  std::vector<std::string> values = {};  // NAME=VALUE
  std::string date = "";                 // YYYY-MM-DD; "": today
  SpecialTokens special = SpecialTokens::kAsText;
};

// --chat-template, --template-value, --date and --special-tokens. `texts`: what the last one is about
void add_chat_options(Options& app, ChatRequest& request, const std::string& texts);

// The folder of `source` as load_tokenizer() takes it; empty: it has none
std::filesystem::path folder_of_tokenizer(const std::string& source);

// The template that `request` names, else that of the folder, else that of the program's own forms whose
// special tokens the tokenizer has; null: none. `tools`: for conversations with tools.
// Error: as chat_form(), find_chat_form() and ChatTemplate; a date or a value that is none.
std::unique_ptr<ChatTemplate> choose_chat_template(const ChatRequest& request,
                                                   const std::filesystem::path& folder,
                                                   const Tokenizer& tokenizer, bool tools = false);

// What to say where there is none
std::string no_chat_template(const Tokenizer& tokenizer);

}  // namespace tessera
