// Where a chat template comes from: the folder of a model, a file, or the two forms that the program has.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/chat/value.h"
#include "data/tokenizers/tokenizer.h"

namespace tessera {

inline constexpr const char* kChatTemplateFile = "chat_template.jinja";
// Further templates of a model by their names: tool_use.jinja for conversations with tools
inline constexpr const char* kMoreTemplatesFolder = "additional_chat_templates";
inline constexpr const char* kToolTemplateFile = "tool_use.jinja";
inline constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
inline constexpr const char* kSpecialTokensFile = "special_tokens_map.json";

struct ChatForm {
  std::string jinja;
  std::string name;  // for messages: a file, or "chatml" or "llama3"
  std::vector<std::string>
      markers;  // of the program's own forms: encoded by themselves, even if they are text
};

// The names of the program's own forms: chatml (Qwen, SmolLM) and llama3
std::vector<std::string> chat_form_names();

// `named` is one of these names, a file with a template in Jinja, or the name of a template of `folder`.
// Error: none of them, with what is known.
ChatForm chat_form(const std::string& named, const std::filesystem::path& folder = {});
// The form of a template's text: the program's own one, if it has that text
ChatForm chat_form_of(std::string jinja, std::string name);

// The template of a folder that transformers or ./prepare wrote. Its templates have names: NAME.jinja of the
// folder additional_chat_templates, and "default" for chat_template.jinja; without these files, the
// chat_template of tokenizer_config.json, which is "default" or a list of named ones. With `tools` "tool_use"
// is taken if it is there, else "default". Error: a file that is not what it should be.
std::optional<ChatForm> find_chat_form(const std::filesystem::path& folder, bool tools = false);

// The form whose special tokens the tokenizer has; none if it has those of none, or of both
std::optional<ChatForm> guess_chat_form(const Tokenizer& tokenizer);

// bos_token, eos_token and the others that the folder names, as variables of a template
jinja::Dict special_tokens_of(const std::filesystem::path& folder);

// For a form with markers. Error: the tokenizer has some of them as special tokens but not all; it has none,
// and the form is not chatml (whose markers may be ordinary text); it has them as tokens that are not
// special, which a text could forge.
void check_markers(const ChatForm& form, const Tokenizer& tokenizer);

}  // namespace tessera
