#include "kernels/base/hub_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace tessera {
namespace {

// Names without an owner that everybody uses
constexpr std::pair<std::string_view, std::string_view> kShort[] = {
    {"gpt2", "openai-community/gpt2"},
    {"gpt2-medium", "openai-community/gpt2-medium"},
    {"gpt2-large", "openai-community/gpt2-large"},
    {"gpt2-xl", "openai-community/gpt2-xl"},
    {"distilgpt2", "distilbert/distilgpt2"}};

// Folders that the manual's commands write to: no owners of models
constexpr std::string_view kOwnFolders[] = {"runs", "data", "models", "checkpoints", "configs", "build"};

bool is_word(std::string_view text) {
  const auto is_part = [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  return !text.empty() && text[0] != '.' && std::ranges::all_of(text, is_part);
}

bool is_file_name(std::string_view text) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{".json", ".jsonl", ".bin", ".txt", ".yaml", ".safetensors",
                                              ".gguf", ".model"},
      [&](std::string_view ending) { return text.ends_with(ending); });
}

// "owner/name"; "": it is none
std::string on_the_hub(std::string_view name) {
  for (const auto& [known, whole] : kShort)
    if (name == known) return std::string(whole);
  const size_t slash = name.find('/');
  if (slash == name.npos) return "";
  const std::string_view owner = name.substr(0, slash), model = name.substr(slash + 1);
  std::error_code error;  // an owner that is a folder here is a path
  const bool is_path = std::ranges::find(kOwnFolders, owner) != std::end(kOwnFolders) ||
                       is_file_name(model) || std::filesystem::exists(owner, error);
  return is_word(owner) && is_word(model) && !is_path ? std::string(name) : "";
}

}  // namespace

std::string hub_advice(std::string_view name, HubFiles files) {
  const std::string whole = on_the_hub(name);
  if (whole.empty()) return "";
  const std::string folder = "models/" + whole.substr(whole.find('/') + 1);
  const bool is_short = whole != name;  // GPT-2's: the folder has the weights in five formats
  const char* parts = files == HubFiles::kTokenizer ? " tokenizer.json tokenizer_config.json"
                      : is_short ? " config.json generation_config.json model.safetensors tokenizer.json "
                                   "tokenizer_config.json"
                                 : "";
  return fmt::format(
      ". If it is a model of Hugging Face's hub, download it, and name the folder {}: hf download {}{} "
      "--local-dir {} (docs/get_a_model.md)",
      folder, whole, parts, folder);
}

}  // namespace tessera
