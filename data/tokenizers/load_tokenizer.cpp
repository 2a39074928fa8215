#include "data/tokenizers/load_tokenizer.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/byte_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "data/tokenizers/tokens_beside.h"
#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/hub_name.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMostBytes = size_t{256} << 20;  // of a file of merges
constexpr const char* kConfigFile = "tokenizer_config.json";

struct FilePair {
  const char *vocabulary, *merges;
};
constexpr FilePair kPairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool has_pair(const fs::path& folder, const FilePair& pair) {
  return is_file(folder / pair.vocabulary) && is_file(folder / pair.merges);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::optional<json> read_tokenizer_config(const fs::path& folder) {
  if (!is_file(folder / kConfigFile)) return {};
  json config = read_json(folder / kConfigFile);
  check(config.is_object(), "{}: expected a JSON object, found {}", (folder / kConfigFile).string(),
        brief(config));
  return config;
}

// A line of two tokens with a blank between them, or of "#version: 0.2".
std::vector<Merge> read_merges(const fs::path& path, const TokenIds& ids) {
  const MappedFile file(path);
  std::string_view rest = text_of(file);
  check(rest.size() <= kMostBytes, "{} has {} bytes; the limit is {}", path.string(), rest.size(),
        kMostBytes);
  std::vector<Merge> merges;
  int64_t number = 1;
  const std::function<std::string()> where = [&] { return fmt::format("{}:{}", path.string(), number); };
  for (; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.starts_with("#version")) continue;
    if (line.empty() && rest.empty()) break;
    const size_t blank = line.find(' ');
    if (blank == line.npos || line.find(' ', blank + 1) != line.npos)
      fail("{}: expected two tokens with one blank between them, found {}", where(),
           in_quotes(printable(line.substr(0, 100))));
    merges.push_back(merge_of(ids, line.substr(0, blank), line.substr(blank + 1), where));
  }
  return merges;
}

PreTokenizerKind kind_of(const std::optional<json>& config, const std::string& where) {
  const auto named = config ? config->find("tokenizer_class") : json::const_iterator{};
  if (!config || named == config->end() || named->is_null()) return PreTokenizerKind::kGpt2;
  for (const auto& [kind, name] : {std::pair(PreTokenizerKind::kGpt2, "GPT2Tokenizer"),
                                   std::pair(PreTokenizerKind::kQwen2, "Qwen2Tokenizer")})
    if (*named == name || *named == std::string(name) + "Fast") return kind;
  fail(
      "{}: tokenizer_class is {}; of the files {} and {} only \"GPT2Tokenizer\" and \"Qwen2Tokenizer\" are "
      "known; expected a tokenizer.json, which says how texts are split",
      where, brief(*named), kPairs[0].vocabulary, kPairs[0].merges);
}

std::vector<AddedToken> added_tokens_of(const std::optional<json>& config, const TokenIds& ids,
                                        const fs::path& folder) {
  std::vector<AddedToken> added;
  const std::string where = (folder / kConfigFile).string() + ": added_tokens_decoder";
  if (config && config->contains("added_tokens_decoder")) {
    const json& tokens = config->at("added_tokens_decoder");
    check(tokens.is_object(), "{} must be an object, found {}", where, brief(tokens));
    for (const auto& [key, token] : tokens.items()) {
      const bool is_id = !key.empty() && key.size() < 8 &&
                         std::ranges::all_of(key, [](char c) { return c >= '0' && c <= '9'; });
      check(is_id && std::stol(key) < kMostTokenIds, "{}: a key must be an id, found {}", where,
            in_quotes(key));
      added.push_back(read_added_token(token, static_cast<int32_t>(std::stol(key)), where + "." + key));
    }
  } else {
    check(!is_file(folder / "added_tokens.json"),
          "{} does not say what is done with its tokens; expected a tokenizer.json, or "
          "\"added_tokens_decoder\" in {}",
          (folder / "added_tokens.json").string(), kConfigFile);
    constexpr const char* kEnd = "<|endoftext|>";
    if (ids.contains(kEnd)) added.push_back({.id = ids.find(kEnd), .content = kEnd, .special = true});
  }
  std::ranges::sort(added, {}, &AddedToken::id);
  return added;
}

TokenizerDefinition read_pair(const fs::path& folder, const FilePair& pair) {
  const std::optional<json> config = read_tokenizer_config(folder);
  TokenizerDefinition definition = definition_of(kind_of(config, (folder / kConfigFile).string()));
  const fs::path path = folder / pair.vocabulary;
  const MappedFile vocabulary(path);
  const TokenIds ids = read_vocabulary(text_of(vocabulary), path.string());
  definition.added = added_tokens_of(config, ids, folder);
  set_tokens(definition, ids, path.string());
  // Only a tokenizer.json says that its tokens are written in the byte alphabet.
  if (!definition.unreachable.empty())
    fail(
        "{}: the token {} (id {}) is not written in the byte alphabet, and is not among the added tokens; "
        "expected byte-level BPE, or a tokenizer.json",
        path.string(), in_quotes(definition.unreachable[0].content), definition.unreachable[0].id);
  definition.merges = read_merges(folder / pair.merges, ids);
  return definition;
}

[[noreturn]] void refuse_sentence_piece(const fs::path& model) {
  const std::string folder = model.has_parent_path() ? model.parent_path().string() : ".";
  fail(
      "{} is a tokenizer of SentencePiece, and {} has no {}; expected one. transformers writes it: python3 "
      "-c \"from transformers import AutoTokenizer; "
      "AutoTokenizer.from_pretrained('{}').save_pretrained('{}')\"",
      model.string(), folder, kTokenizerFile, folder, folder);
}

// -1: none
int32_t find_end_of_text(const TokenizerDefinition& definition, const fs::path& folder,
                         const EndOfText& asked, const std::string& source) {
  if (asked.id >= 0) {
    check(has_token(definition, asked.id), "the tokenizer {} has no token {} that could end texts", source,
          asked.id);
    return static_cast<int32_t>(asked.id);
  }
  if (!asked.content.empty()) {
    const int32_t id = token_id(definition, asked.content);
    check(id >= 0, "the tokenizer {} has no token {} that could end texts", source, in_quotes(asked.content));
    return id;
  }
  for (const char* content : {"<|endoftext|>", "<|end_of_text|>", "</s>"})
    for (const AddedToken& token : definition.added)
      if (token.special && token.content == content) return token.id;
  const std::optional<json> config = read_tokenizer_config(folder);
  const auto token = config ? config->find("eos_token") : json::const_iterator{};
  if (!config || token == config->end()) return -1;
  const json& content = token->is_object() && token->contains("content") ? token->at("content") : *token;
  return content.is_string() ? token_id(definition, content.get<std::string>()) : -1;
}

}  // namespace

bool has_tokenizer(const fs::path& folder) {
  return is_file(folder / kTokenizerFile) ||
         std::ranges::any_of(kPairs, [&](const FilePair& pair) { return has_pair(folder, pair); });
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& source, const EndOfText& end_of_text) {
  if (source == kBytesTokenizer) {
    check(end_of_text.content.empty(),
          "the tokenizer `{}` has an end of text of its own: remove --end-of-text {}", source,
          in_quotes(end_of_text.content));
    return make_byte_tokenizer();
  }
  std::error_code error;
  const fs::path path(source);
  const bool is_folder = fs::is_directory(path, error);
  check(is_folder || fs::exists(path, error),
        "the tokenizer '{}' does not exist: expected '{}', a tokenizer.json, or a folder that holds one{}",
        source, kBytesTokenizer, hub_advice(source, HubFiles::kTokenizer));
  const fs::path folder = is_folder ? path : path.parent_path().empty() ? fs::path(".") : path.parent_path();
  const std::string name = path.filename().string();
  const auto named = std::ranges::find_if(
      kPairs, [&](const FilePair& pair) { return name == pair.vocabulary || name == pair.merges; });
  if (path.extension() == ".model" && !is_folder) refuse_sentence_piece(path);
  if (!is_folder && named == std::end(kPairs)) {
    const MappedFile file(path);
    std::string text(text_of(file));
    TokenizerDefinition definition = read_tokenizer_json(text, source);
    const bool is_whole = end_of_text.id >= 0;  // beside prepared data, where ./prepare wrote it
    if (std::string more = is_whole ? "" : with_tokens_beside(text, definition, folder, source);
        !more.empty()) {
      text = std::move(more);
      definition = read_tokenizer_json(text, source);
    }
    const int32_t end = find_end_of_text(definition, folder, end_of_text, source);
    return make_bpe_tokenizer(std::move(definition), end, std::move(text), source);
  }
  if (is_folder && is_file(folder / kTokenizerFile))
    return load_tokenizer((folder / kTokenizerFile).string(), end_of_text);
  const auto pair = is_folder
                        ? std::ranges::find_if(kPairs, [&](const FilePair& p) { return has_pair(folder, p); })
                        : named;
  const bool is_found = pair != std::end(kPairs) && has_pair(folder, *pair);
  if (const fs::path model = folder / "tokenizer.model"; !is_found && is_file(model))
    refuse_sentence_piece(model);
  check(is_found,
        "{} has no tokenizer: expected a tokenizer.json, vocab.json with merges.txt, or encoder.json with "
        "vocab.bpe",
        folder.string());
  TokenizerDefinition definition = read_pair(folder, *pair);
  const int32_t end = find_end_of_text(definition, folder, end_of_text, source);
  return make_bpe_tokenizer(std::move(definition), end, "", (folder / pair->merges).string());
}

}  // namespace tessera
