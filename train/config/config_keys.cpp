#include "train/config/config_keys.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "train/config/config_fields.h"

namespace tessera {
namespace {

const std::vector<std::string_view>& all_keys() {
  static const std::vector<std::string_view> keys = [] {
    std::vector<std::string_view> found;
    Config config;
    for_each_field(config, [&](std::string_view key, const auto&...) { found.push_back(key); });
    return found;
  }();
  return keys;
}

struct Renamed {
  std::string_view before, now;
};
constexpr Renamed kRenamed[] = {{"optimizer.warmup_steps", "optimizer.warmup"},
                                {"train.matmul", "train.gemm_dtype"},
                                {"train.zero", "parallel.shard"},
                                {"train.products", "train.gemm_backend"},
                                {"train.recorded", "train.cuda_graphs"}};
struct RenamedValue {
  std::string_view key, before, now;
};
constexpr RenamedValue kRenamedValues[] = {{"train.gemm_backend", "own", "tessera"},
                                            {"parallel.shard", "0", "none"},
                                            {"parallel.shard", "1", "optimizer"}};

// With the earlier names of keys, which are taken, too
const std::vector<std::string_view>& all_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> found = all_keys();
    for (const Renamed& key : kRenamed) found.push_back(key.before);
    return found;
  }();
  return names;
}

// A section comes after the one that it is in.
const std::vector<std::string_view>& all_sections() {
  static const std::vector<std::string_view> sections = [] {
    std::vector<std::string_view> found;
    for (const std::string_view key : all_keys())
      for (size_t dot = key.find('.'); dot != std::string_view::npos; dot = key.find('.', dot + 1)) {
        const std::string_view section = key.substr(0, dot);
        if (std::find(found.begin(), found.end(), section) == found.end()) found.push_back(section);
      }
    return found;
  }();
  return sections;
}

// Between a name that does not exist and a candidate
size_t distance(std::string_view key, std::string_view candidate) {
  const SplitKey a = split_key(key), b = split_key(candidate);
  // A right name in a wrong section is one mistake, however different the sections are called.
  return std::min(edit_distance(key, candidate), edit_distance(a.leaf, b.leaf) + (a.section != b.section));
}

}  // namespace

SplitKey split_key(std::string_view key) {
  const size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return {"", key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

bool is_key(std::string_view key) {
  const auto& names = all_names();
  return std::find(names.begin(), names.end(), key) != names.end();
}

std::string_view present_name(std::string_view key) {
  for (const Renamed& renamed : kRenamed)
    if (key == renamed.before) return renamed.now;
  return key;
}

std::string_view present_value(std::string_view key, std::string_view value) {
  for (const RenamedValue& renamed : kRenamedValues)
    if (key == renamed.key && value == renamed.before) return renamed.now;
  return value;
}

bool is_section(std::string_view name) {
  const auto& sections = all_sections();
  return std::find(sections.begin(), sections.end(), name) != sections.end();
}

bool takes_one_value(std::string_view section) { return section == "model.dropout"; }

std::vector<std::string_view> keys_in(std::string_view section) {
  std::vector<std::string_view> keys = all_keys();
  std::erase_if(keys, [&](std::string_view key) {
    const std::string_view own = split_key(key).section;
    return own != section && (section.empty() || !own.starts_with(std::string(section) + "."));
  });
  return keys;
}

std::string nested(std::string_view key) {
  std::string text;
  for (std::string_view rest = key; !rest.empty();) {
    const size_t dot = std::min(rest.find('.'), rest.size());
    const bool is_value = dot == rest.size() && is_key(key);
    text += fmt::format("{}\"{}:{}\"", text.empty() ? "" : " and, indented below it, ", rest.substr(0, dot),
                        is_value ? " ..." : "");
    rest.remove_prefix(std::min(dot + 1, rest.size()));
  }
  return text;
}

std::string unknown_key(std::string_view key) {
  const SplitKey asked = split_key(key);
  const auto distance_to = [&](std::string_view candidate) { return distance(key, candidate); };
  std::vector<std::string_view> known = keys_in(is_section(asked.section) ? asked.section : "");
  if (!is_section(asked.section))
    for (const std::string_view section : all_sections()) known.push_back(section);
  std::vector<std::string_view> candidates = all_names();
  for (const std::string_view section : all_sections())
    if (takes_one_value(section)) candidates.push_back(section);
  if (asked.leaf.empty()) candidates.clear();  // nothing is near to a name of one letter
  return unknown_word("key", key, nearest(candidates, asked.leaf.size(), distance_to), known);
}

std::string unknown_section(std::string_view name) {
  const auto distance_to = [&](std::string_view candidate) { return distance(name, candidate); };
  return unknown_word("section", name, nearest(all_sections(), split_key(name).leaf.size(), distance_to),
                      all_sections());
}

std::string option_is_a_key(std::string_view option) {
  std::string word(option.substr(std::min(option.find_first_not_of('-'), option.size())));
  const size_t equals = word.find('=');
  const std::string value = equals == word.npos ? "VALUE" : word.substr(equals + 1);
  word.resize(std::min(equals, word.size()));
  std::replace(word.begin(), word.end(), '-', '_');
  std::vector<std::string> switches;
  for (const std::string_view key : all_names())
    if (key == word || key.ends_with("." + word)) switches.push_back(fmt::format("--set {}={}", key, value));
  if (switches.empty()) return "";
  return fmt::format("a key of the configuration is set with {}", fmt::join(switches, " or "));
}

}  // namespace tessera
