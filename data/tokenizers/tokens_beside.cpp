#include "data/tokenizers/tokens_beside.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char *kConfig = "tokenizer_config.json", *kAdded = "added_tokens.json",
                     *kSpecial = "special_tokens_map.json", *kDecoder = "added_tokens_decoder";
constexpr const char* kNamed[]{"bos_token", "eos_token", "unk_token", "sep_token",
                               "pad_token", "cls_token", "mask_token"};

// A token that a file names
struct Named {
  AddedToken token;  // an id below 0: the file names none
  std::string where;
};

json object_in(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return json::object();
  json found = read_json(path);
  check(found.is_object(), "{}: expected a JSON object, found {}", path.string(), brief(found));
  return found;
}

int32_t id_of(const json& value, const std::string& where) {
  const bool is_id = value.is_number_integer() && value >= 0 && value < kMostTokenIds;
  check(is_id, "{}: expected an id below {}, found {}", where, kMostTokenIds, brief(value));
  return value.get<int32_t>();
}

// The special tokens of tokenizer_config.json or special_tokens_map.json, in transformers' order
class NamedTokens {
 public:
  void read(const json& object, const std::string& file) {
    for (const auto& [key, value] : object.items()) {
      if (key == "additional_special_tokens" || key == "extra_special_tokens") {
        if (value.is_array() || value.is_object())
          for (const json& one : value) add(value.is_array() ? "" : "extra", one, file + ": " + key);
      } else if (key.ends_with("_token")) {
        add(key, value, file + ": " + key);
      }
    }
  }
  std::vector<Named> in_order() const {
    std::vector<Named> tokens;
    for (const char* name : kNamed)
      for (const auto& [key, token] : found_)
        if (key == name) tokens.push_back(token);
    for (const bool listed : {false, true})
      for (const auto& [key, token] : found_)
        if (key.empty() == listed && std::ranges::find(kNamed, key) == std::end(kNamed))
          tokens.push_back(token);
    return tokens;
  }

 private:
  // `key`: "": one of a list. A value that is neither a text nor a token is a setting, such as add_bos_token.
  void add(const std::string& key, const json& value, const std::string& where) {
    Named named;
    named.where = where;
    if (value.is_object() && value.contains("content")) {
      json token = value;
      token.erase("__type");
      token["special"] = true;
      named.token = read_added_token(token, -1, where);
    } else if (value.is_string() && !value.get_ref<const std::string&>().empty()) {
      named.token.id = -1;
      named.token.content = value;
      named.token.special = true;
    } else {
      return;
    }
    const auto same = std::ranges::find_if(
        found_, [&](const auto& one) { return one.first == key && !key.empty() && key != "extra"; });
    if (same == found_.end())
      found_.emplace_back(key, std::move(named));
    else
      same->second = std::move(named);  // the file that is read later counts
  }
  std::vector<std::pair<std::string, Named>> found_;
};

std::vector<Named> read_beside(const fs::path& folder) {
  const std::string config_file = (folder / kConfig).string(), added_file = (folder / kAdded).string();
  const json config = object_in(folder / kConfig);
  NamedTokens special;
  special.read(config, config_file);
  std::vector<Named> tokens;
  if (const auto decoder = config.find(kDecoder); decoder != config.end() && !decoder->is_null()) {
    const std::string where = config_file + ": " + kDecoder;
    check(decoder->is_object(), "{}: expected an object, found {}", where, brief(*decoder));
    for (const auto& [key, token] : decoder->items()) {
      json one = token;
      if (one.is_object()) one.erase("__type");
      const int32_t id = id_of(json::parse(key, nullptr, false), where);
      AddedToken made = read_added_token(one, id, where + "." + key);
      tokens.push_back({std::move(made), where});
    }
  } else {
    special.read(object_in(folder / kSpecial), (folder / kSpecial).string());
    const std::vector<Named> named = special.in_order();
    const json added = object_in(folder / kAdded);
    for (const auto& [content, id] : added.items()) {
      if (content.empty()) continue;
      const bool is_special =
          std::ranges::any_of(named, [&](const Named& one) { return one.token.content == content; });
      AddedToken token{.content = content, .special = is_special, .normalized = !is_special};
      token.id = id_of(id, added_file + ": " + content);
      tokens.push_back({std::move(token), added_file});
    }
  }
  std::ranges::stable_sort(tokens, {}, [](const Named& one) { return one.token.id; });
  const std::vector<Named> named = special.in_order();
  tokens.insert(tokens.end(), named.begin(), named.end());
  return tokens;
}

// The tokens of tokenizer.json, and those that join them
class Joined {
 public:
  Joined(const TokenizerDefinition& definition, const std::string& file)
      : definition_(definition), file_(file), added_(definition.added) {
    next_ = static_cast<int32_t>(definition.tokens.size());
    if (!definition.unreachable.empty()) next_ = std::max(next_, definition.unreachable.back().id + 1);
    if (!added_.empty()) next_ = std::max(next_, added_.back().id + 1);
  }

  void add(Named named) {
    AddedToken& token = named.token;
    const bool has_id = token.id >= 0;
    if (const auto known = std::ranges::find(added_, token.content, &AddedToken::content);
        known != added_.end()) {
      check_id(named, known->id);
      if (!has_id) return;  // by its name only
      token.special = token.special || known->special;
      changed_ = changed_ || *known != token;
      *known = token;
      return;
    }
    const int32_t held = token_id(definition_, token.content);
    check_id(named, held < 0 ? next_ : held);
    token.id = held < 0 ? next_++ : held;
    added_.push_back(token);
    changed_ = true;
  }
  bool changed() const { return changed_; }
  const std::vector<AddedToken>& tokens() const { return added_; }

 private:
  void check_id(const Named& named, int32_t id) const {
    check(named.token.id < 0 || named.token.id == id,
          "{} gives {} the id {}, and with {} it has the id {}: one of the two files is another model's",
          named.where, in_quotes(printable(named.token.content)), named.token.id, file_, id);
  }

  const TokenizerDefinition& definition_;
  const std::string& file_;
  std::vector<AddedToken> added_;
  int32_t next_ = 0;  // the id of a token that is in no vocabulary, as `tokenizers` counts
  bool changed_ = false;
};

}  // namespace

std::string with_tokens_beside(std::string_view text, const TokenizerDefinition& definition,
                               const fs::path& folder, const std::string& file) {
  Joined joined(definition, file);
  for (Named& named : read_beside(folder)) joined.add(std::move(named));
  if (!joined.changed()) return "";
  json whole = json::parse(text);
  whole["added_tokens"] = added_tokens_json(joined.tokens());
  return whole.dump();
}

}  // namespace tessera
