#include "data/chat/chat_form.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct OwnForm {
  const char* name;
  const char* jinja;
  std::array<const char*, 4> markers;  // the first one tells the form
};
constexpr OwnForm kOwnForms[] = {
    {"chatml",
     "{%- for message in messages -%}"
     "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}",
     {"<|im_start|>", "<|im_end|>"}},
    {"llama3",
     "{{- '<|begin_of_text|>' -}}"
     "{%- for message in messages -%}"
     "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + (message.content | trim) + "
     "'<|eot_id|>' }}"
     "{%- endfor -%}"
     "{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}"
     "{%- endif -%}",
     {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"}}};

ChatForm form_of(const OwnForm& own) {
  ChatForm form{.jinja = own.jinja, .name = own.name, .markers = {}};
  for (const char* marker : own.markers)
    if (marker) form.markers.emplace_back(marker);
  return form;
}

std::string text_of(const fs::path& path) {
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

using NamedForms = std::map<std::string, ChatForm>;
constexpr const char *kDefault = "default", *kToolUse = "tool_use", *kJinja = ".jinja";

// The chat_template of tokenizer_config.json: a text, or a list of {"name", "template"}
NamedForms forms_in_config(const fs::path& folder) {
  NamedForms forms;
  const fs::path path = folder / kTokenizerConfigFile;
  if (!is_file(path)) return forms;
  const json config = read_json(path);
  const std::string file = path.string(), name = file + ": chat_template";
  const auto found = config.is_object() ? config.find("chat_template") : config.end();
  if (!config.is_object() || found == config.end() || found->is_null()) return forms;
  if (found->is_string()) {
    if (!found->get_ref<const std::string&>().empty()) forms.emplace(kDefault, chat_form_of(*found, name));
    return forms;
  }
  check(found->is_array(),
        "{}: chat_template is {}; expected a text, or a list of objects with name and template", file,
        brief(*found));
  for (const json& one : *found) {
    const std::string key = text_value(one, "name", file);
    forms.insert_or_assign(key, chat_form_of(text_value(one, "template", file), name + ", " + key));
  }
  check(forms.contains(kDefault), "{}: chat_template is a list without a template named default", file);
  return forms;
}

// As transformers has it: files count before the configuration.
NamedForms forms_of(const fs::path& folder) {
  NamedForms forms;
  if (const fs::path file = folder / kChatTemplateFile; is_file(file))
    forms.emplace(kDefault, chat_form_of(text_of(file), file.string()));
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / kMoreTemplatesFolder, error))
    if (entry.path().extension() == kJinja && is_file(entry.path()))
      forms.insert_or_assign(entry.path().stem().string(),
                             chat_form_of(text_of(entry.path()), entry.path().string()));
  if (!forms.contains(kDefault)) forms.merge(forms_in_config(folder));
  return forms;
}

}  // namespace

std::vector<std::string> chat_form_names() {
  std::vector<std::string> names;
  for (const OwnForm& own : kOwnForms) names.emplace_back(own.name);
  return names;
}

ChatForm chat_form(const std::string& named, const fs::path& folder) {
  for (const OwnForm& own : kOwnForms)
    if (named == own.name) return form_of(own);
  if (is_file(named)) return chat_form_of(text_of(named), named);
  NamedForms forms = folder.empty() ? NamedForms() : forms_of(folder);
  if (const auto found = forms.find(named); found != forms.end()) return std::move(found->second);
  std::vector<std::string_view> names{kOwnForms[0].name, kOwnForms[1].name};
  for (const auto& [name, form] : forms) names.push_back(name);
  fail(
      "--chat-template {}: there is no such file, and it is not the name of a form, which are {}. Name a "
      "file "
      "with a template in Jinja, such as the chat_template.jinja of a model",
      named, join_words(names, " and "));
}

ChatForm chat_form_of(std::string jinja, std::string name) {
  for (const OwnForm& own : kOwnForms)
    if (jinja == own.jinja) return form_of(own);
  return {.jinja = std::move(jinja), .name = std::move(name), .markers = {}};
}

std::optional<ChatForm> find_chat_form(const fs::path& folder, bool tools) {
  NamedForms forms = forms_of(folder);
  auto found = tools ? forms.find(kToolUse) : forms.end();
  if (found == forms.end()) found = forms.find(kDefault);
  if (found == forms.end()) return std::nullopt;
  return std::move(found->second);
}

std::optional<ChatForm> guess_chat_form(const Tokenizer& tokenizer) {
  std::optional<ChatForm> found;
  for (const OwnForm& own : kOwnForms) {
    if (tokenizer.special_token(own.markers[0]) < 0) continue;
    if (found) return std::nullopt;
    found = form_of(own);
  }
  return found;
}

jinja::Dict special_tokens_of(const fs::path& folder) {
  jinja::Dict tokens;
  for (const char* name : {kTokenizerConfigFile, kSpecialTokensFile}) {
    if (!is_file(folder / name)) continue;
    const json config = read_json(folder / name);
    if (!config.is_object()) continue;
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      const json token = config.value(key, json());
      const json content = token.is_object() ? token.value("content", json()) : token;
      if (content.is_string() && !find(tokens, key))
        tokens.emplace_back(jinja::Text(key), jinja::Text(content.get<std::string>()));
    }
  }
  return tokens;
}

void check_markers(const ChatForm& form, const Tokenizer& tokenizer) {
  std::vector<std::string_view> missing;
  for (const std::string& marker : form.markers)
    if (tokenizer.special_token(marker) < 0) missing.push_back(marker);
  const bool as_text = form.name == kOwnForms[0].name && missing.size() == form.markers.size();
  check(missing.empty() || as_text,
        "the chat template {} needs the special tokens {}, which the tokenizer {} does not have; use one "
        "that has them, or --chat-template chatml, whose markers may be ordinary text",
        form.name, join_words(missing, " and "), tokenizer.name());
  for (const std::string_view marker : missing)
    check(tokenizer.encode(marker).size() > 1,
          "the tokenizer {} takes {} in any text for a token that is not special, so the text of a message "
          "could forge it; mark it as special in the tokenizer's files",
          tokenizer.name(), marker);
}

}  // namespace tessera
