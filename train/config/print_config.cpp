#include "train/config/print_config.h"

#include "kernels/base/check.h"
#include "train/config/config_fields.h"
#include "train/config/config_keys.h"

namespace tessera {

std::string print_config(const Config& config) {
  std::string out;
  std::string_view open;  // the section
  for_each_field(config, [&](std::string_view key, const auto& member, const auto& kind,
                             std::string_view documentation) {
    const auto [section, leaf] = split_key(key);
    if (section != open) out += fmt::format("\n{}:\n", open = section);
    const char* indent = section.empty() ? "" : "  ";
    out += fmt::format("{0}# {1} ({2})\n{0}{3}: {4}\n", indent, documentation, kind.wants(), leaf,
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
