#include "train/config/print_config.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "train/config/config_fields.h"
#include "train/config/config_keys.h"

namespace tessera {

namespace {

// The lines that open `section` after a key of the section `open`: "model:" after a blank line, or
// "  rope:" within it
std::string headers(std::string_view section, std::string_view open) {
  std::string text, indent;
  for (size_t end = 0; end < section.size(); ++end) {
    end = std::min(section.find('.', end), section.size());
    const std::string_view outer = section.substr(0, end);
    const bool is_open = open == outer || open.starts_with(std::string(outer) + ".");
    if (!is_open) text += fmt::format("{}{}{}:\n", indent.empty() ? "\n" : "", indent, split_key(outer).leaf);
    indent += "  ";
  }
  return text;
}

}  // namespace

std::string print_config(const Config& config) {
  std::string out;
  std::string_view open;  // the section
  for_each_field(config, [&](std::string_view key, const auto& member, const auto& kind,
                             std::string_view documentation) {
    const auto [section, leaf] = split_key(key);
    out += headers(section, open);
    open = section;
    const auto depth = section.empty() ? 0 : 1 + std::count(section.begin(), section.end(), '.');
    const std::string indent(static_cast<size_t>(2 * depth), ' ');
    out += fmt::format("{0}# {1} ({2})\n{0}{3}: {4}\n", indent, documentation, kind.expected(), leaf,
                       kind.write(member));
  });
  return out;
}

std::string config_lines(const Config& config) {
  std::string out;
  for_each_field(config, [&](std::string_view key, const auto& member, const auto& kind, std::string_view) {
    out += fmt::format("{}: {}\n", key, kind.write(member));
  });
  return out;
}

}  // namespace tessera
