#include "train/config/config_keys.h"

#include <algorithm>
#include <numeric>

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

// Levenshtein: insertions, deletions and replacements that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // of the table whose rows are prefixes of `a`
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// The candidates of the least distance, unless even that is too far to be what was meant.
template <class Distance>
std::vector<std::string> nearest(const std::vector<std::string_view>& candidates, size_t length,
                                 Distance&& distance) {
  std::vector<std::string> found;
  size_t least = std::max<size_t>(2, length / 3);
  for (const std::string_view candidate : candidates) {
    const size_t d = distance(candidate);
    if (d < least) found.clear();
    if (d <= least) found.push_back(in_quotes(candidate));
    least = std::min(least, d);
  }
  return found;
}

std::string advise(std::string_view what, std::string_view name, const std::vector<std::string>& near,
                   const std::vector<std::string_view>& known) {
  if (near.empty())
    return fmt::format("unknown {} {}; known: {}", what, in_quotes(name), fmt::join(known, ", "));
  return fmt::format("unknown {} {}; did you mean {}?", what, in_quotes(name),
                     join_words({near.begin(), near.end()}));
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
  return advise("key", key, nearest(all_keys(), wanted.leaf.size(), distance), known);
}

std::string unknown_section(std::string_view name) {
  const auto distance = [&](std::string_view candidate) { return edit_distance(name, candidate); };
  return advise("section", name, nearest(all_sections(), name.size(), distance), all_sections());
}

}  // namespace tessera
