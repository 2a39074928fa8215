#include "train/export/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kConfig = "tokenizer_config.json";

// The content of the token of a field of token_ids, or of the first of several; "": none
std::string token_of(const ExportSource& source, const char* field) {
  const auto found = source.token_ids.find(field);
  if (found == source.token_ids.end()) return "";
  const json& id = found->is_array() && !found->empty() ? found->front() : *found;
  if (!id.is_number_integer()) return "";
  const auto number = id.get<int64_t>();
  if (number < 0 || number >= source.tokenizer->vocab_size()) return "";
  const auto token = static_cast<int32_t>(number);
  try {
    return source.tokenizer->token_text(token, true);
  } catch (const Error&) {  // the id has no token
    return "";
  }
}

void add_special_tokens(const ExportSource& source, ordered_json& object) {
  for (const auto& [name, field] :
       {std::pair("bos_token", "bos_token_id"), std::pair("eos_token", "eos_token_id"),
        std::pair("pad_token", "pad_token_id")})
    if (const std::string token = token_of(source, field);
        !token.empty() && utf8_prefix(token) == token.size())
      object[name] = token;
}

// Checks a file that is copied: with a damaged one no program could load the export.
void check_is_json(const std::string& name, const std::string& bytes, const ExportSource& source) {
  if (name.ends_with(".json"))
    parse_json(bytes, (source.folder / name).string(), {.bytes = bytes.size(), .repeated_keys = true});
}

std::string text_of(const ordered_json& object) { return object.dump(2) + "\n"; }

// Adds the chat template to a tokenizer_config.json without one.
void add_chat_template(const ExportSource& source, std::string& config) {
  const std::string chat = chat_template_of(source);
  if (chat.empty() || source.files.contains("chat_template.jinja")) return;
  ordered_json object = ordered_json::parse(config);
  if (!object.is_object() || object.contains("chat_template")) return;
  object["chat_template"] = chat;
  config = text_of(object);
}

}  // namespace

CopiedFiles hugging_face_files(const ExportSource& source) {
  for (const auto& [name, bytes] : source.files) check_is_json(name, bytes, source);
  CopiedFiles files = source.files;
  if (source.tokenizer) {
    if (!files.contains(kTokenizerFile)) files[kTokenizerFile] = source.tokenizer->json();
    if (!files.contains(kConfig)) {
      ordered_json config{{"tokenizer_class", "PreTrainedTokenizerFast"},
                          {"model_max_length", source.model.context},
                          {"clean_up_tokenization_spaces", false}};
      add_special_tokens(source, config);
      files[kConfig] = text_of(config);
      ordered_json special = ordered_json::object();
      add_special_tokens(source, special);
      if (!files.contains("special_tokens_map.json")) files["special_tokens_map.json"] = text_of(special);
    }
    add_chat_template(source, files[kConfig]);
  }
  if (!files.contains("generation_config.json")) {
    ordered_json generation = ordered_json::object();
    for (const auto& [field, id] : source.token_ids.items()) generation[field] = id;
    files["generation_config.json"] = text_of(generation);
  }
  return files;
}

}  // namespace tessera
