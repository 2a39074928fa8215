#include "train/run/chat_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/chat/chat_form.h"
#include "data/manifest.h"
#include "data/tokenizers/special_token_finder.h"
#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kGenerationConfigFile = "generation_config.json";
constexpr const char* kEnd = "eos_token_id";

std::string text_of(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  const MappedFile file(path);
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

ordered_json object_in(const CopiedFiles& files, const char* name) {
  const auto found = files.find(name);
  if (found == files.end()) return ordered_json::object();
  ordered_json object = ordered_json::parse(found->second, nullptr, false);
  return object.is_object() ? object : ordered_json::object();
}

// The template that other programs take from these files
std::string template_of(const CopiedFiles& files) {
  if (const auto file = files.find(kChatTemplateFile); file != files.end()) return file->second;
  const ordered_json config = object_in(files, kTokenizerConfigFile);
  return config.contains("chat_template") && config["chat_template"].is_string() ? config["chat_template"]
                                                                                 : "";
}

void keep_template(const ChatData& chat, CopiedFiles& copied, std::vector<std::string>& notices) {
  const std::string before = template_of(copied);
  ordered_json config = object_in(copied, kTokenizerConfigFile);
  if (!chat.tools_jinja.empty())
    copied.try_emplace(fmt::format("{}/{}", kTemplatesFolder, kToolTemplateFile), chat.tools_jinja);
  if (before == chat.jinja) return;
  if (!before.empty() || config.contains("chat_template"))
    notices.push_back(
        fmt::format("the data has another chat template ({}) than the folder of train.init_from: "
                    "checkpoints have that of the data",
                    chat.name));
  copied[kChatTemplateFile] = chat.jinja;
  if (config.erase("chat_template") > 0) copied[kTokenizerConfigFile] = config.dump(2) + "\n";
  if (!chat.special_tokens.empty() && config.empty())
    copied.try_emplace(kSpecialTokensFile, chat.special_tokens);
}

void keep_turn_ends(const ChatData& chat, const Tokenizer& tokenizer, const json& token_ids,
                    CopiedFiles& copied, std::vector<std::string>& notices) {
  ordered_json generation = object_in(copied, kGenerationConfigFile);
  if (generation.empty())
    for (const auto& [field, id] : token_ids.items()) generation[field] = id;
  ordered_json ends = generation.value(kEnd, token_ids.value(kEnd, ordered_json()));
  if (ends.is_null() && tokenizer.end_of_text() >= 0) ends = tokenizer.end_of_text();
  ends = ends.is_array() ? ends : ends.is_null() ? ordered_json::array() : ordered_json::array({ends});
  std::vector<int32_t> added;
  for (const int32_t id : chat.turn_ends)
    if (std::ranges::find(ends, ordered_json(id)) == ends.end()) {
      added.push_back(id);
      ends.push_back(id);
    }
  if (added.empty()) return;
  generation[kEnd] = ends;
  copied[kGenerationConfigFile] = generation.dump(2) + "\n";
  notices.push_back(
      fmt::format("checkpoints and exports end texts at {}, too: {} has them beside the end of text",
                  list_tokens(tokenizer, added), kGenerationConfigFile));
}

}  // namespace

ChatData read_chat_data(const std::vector<fs::path>& folders) {
  ChatData chat;
  for (const fs::path& folder : folders) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) continue;
    const auto manifest = read_manifest(folder);
    if (!manifest || manifest->chat_template.empty()) continue;
    std::string jinja = text_of(folder / kChatTemplateFile);
    if (jinja.empty())  // of an earlier version, which had its own forms alone
      for (const std::string& name : chat_form_names())
        if (name == manifest->chat_template) jinja = chat_form(name).jinja;
    if (chat.jinja.empty()) {
      chat.name = manifest->chat_template;
      chat.jinja = jinja;
      chat.tools_jinja = text_of(folder / kMoreTemplatesFolder / kToolTemplateFile);
      chat.special_tokens = text_of(folder / kSpecialTokensFile);
    } else if (jinja != chat.jinja) {
      chat.others.push_back(manifest->chat_template);
    }
    chat.knows_turn_ends = chat.knows_turn_ends || manifest->turn_ends.has_value();
    for (const int32_t id : manifest->turn_ends.value_or(std::vector<int32_t>()))
      if (std::ranges::find(chat.turn_ends, id) == chat.turn_ends.end()) chat.turn_ends.push_back(id);
  }
  return chat;
}

std::vector<std::string> keep_chat(const ChatData& chat, const Tokenizer& tokenizer, const json& token_ids,
                                   CopiedFiles& copied) {
  std::vector<std::string> notices;
  if (chat.jinja.empty()) return notices;
  if (!chat.turn_ends.empty())
    notices.push_back(fmt::format("conversations in the form of {}: these ends of turns have a loss: {}",
                                  chat.name, list_tokens(tokenizer, chat.turn_ends)));
  else if (chat.knows_turn_ends)
    notices.push_back(
        fmt::format("conversations in the form of {}: no special token that ends a turn has a loss, so "
                    "other programs will not know where an answer ends",
                    chat.name));
  if (chat.others.empty())
    keep_template(chat, copied, notices);
  else
    notices.push_back(
        fmt::format("the data has several chat templates, {} and {}: checkpoints keep that of the folder "
                    "that the run started from",
                    chat.name, join_words({chat.others.begin(), chat.others.end()}, ", ")));
  keep_turn_ends(chat, tokenizer, token_ids, copied, notices);
  return notices;
}

}  // namespace tessera
