#include "train/config/config_keys.h"

#include <algorithm>
#include <fmt/ranges.h>

#include "kernels/base/check.h"
#include "train/config/config_fields.h"

namespace tessera {
namespace {

std::vector<std::string_view> all_keys() {
  std::vector<std::string_view> keys;
  Config config;
  for_each_field(config, [&](std::string_view key, const auto&...) { keys.push_back(key); });
  return keys;
}

std::vector<std::string_view> all_sections() {
  std::vector<std::string_view> sections;
  for (const std::string_view key : all_keys()) {
    const std::string_view section = split_key(key).section;
    if (!section.empty() && (sections.empty() || sections.back() != section)) sections.push_back(section);
  }
  return sections;
}

}  // namespace

SplitKey split_key(std::string_view key) {
  const size_t dot = key.find('.');
  if (dot == std::string_view::npos) return {"", key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

bool is_key(std::string_view key) {
  const auto keys = all_keys();
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

bool is_section(std::string_view name) {
  const auto sections = all_sections();
  return std::find(sections.begin(), sections.end(), name) != sections.end();
}

std::vector<std::string_view> keys_in(std::string_view section) {
  std::vector<std::string_view> keys = all_keys();
  std::erase_if(keys, [&](std::string_view key) { return split_key(key).section != section; });
  return keys;
}

std::string unknown_key(std::string_view key) {
  const SplitKey wanted = split_key(key);
  const auto distance = [&](std::string_view candidate) {
    const auto [section, leaf] = split_key(candidate);
    // A right name in a wrong section is one mistake, however different the sections are called.
    return std::min(edit_distance(key, candidate),
                    edit_distance(wanted.leaf, leaf) + (section != wanted.section));
  };
  std::vector<std::string_view> known = keys_in(is_section(wanted.section) ? wanted.section : "");
  if (!is_section(wanted.section))
    for (const std::string_view section : all_sections()) known.push_back(section);
  return unknown_word("key", key, nearest(all_keys(), wanted.leaf.size(), distance), known);
}

std::string unknown_section(std::string_view name) { return unknown_word("section", name, all_sections()); }

std::string option_is_a_key(std::string_view option) {
  std::string word(option.substr(std::min(option.find_first_not_of('-'), option.size())));
  const size_t equals = word.find('=');
  const std::string value = equals == word.npos ? "VALUE" : word.substr(equals + 1);
  word.resize(std::min(equals, word.size()));
  std::replace(word.begin(), word.end(), '-', '_');
  std::vector<std::string> switches;
  for (const std::string_view key : all_keys())
    if (key == word || split_key(key).leaf == word)
      switches.push_back(fmt::format("--set {}={}", key, value));
  if (switches.empty()) return "";
  return fmt::format("a key of the configuration is set with {}", fmt::join(switches, " or "));
}

}  // namespace tessera
