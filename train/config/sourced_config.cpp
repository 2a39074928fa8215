#include "train/config/sourced_config.h"

#include "kernels/base/check.h"
#include "train/config/config_fields.h"

namespace tessera {

std::string value_of(const Config& config, std::string_view name) {
  std::string out;
  for_each_field(config, [&](std::string_view key, const auto& member, const auto& kind, std::string_view) {
    if (key == name) out = kind.write(member);
  });
  return out;
}

void SourcedConfig::set(const Written& value, Origin origin) {
  for_each_field(config, [&](std::string_view key, auto& member, const auto& kind, std::string_view) {
    if (key == value.key) member = static_cast<std::decay_t<decltype(member)>>(kind.read(value));
  });
  places_[value.key] = {origin, value.where};
}

Place SourcedConfig::place(std::string_view key) const {
  const auto found = places_.find(key);
  return found == places_.end() ? Place{} : found->second;
}

std::string SourcedConfig::cite(std::string_view key) const {
  return fmt::format("{} {}", key, value_of(config, key));
}

void SourcedConfig::require(bool holds, std::string_view a, std::string_view relation, std::string_view b,
                            const std::string& advice) const {
  if (holds) return;
  const bool blame_b = place(b).origin > place(a).origin;
  const std::string other = fmt::format(" ({})", place(blame_b ? a : b).where);
  fail("{}: {}{} {} {}{}{}", place(blame_b ? b : a).where, cite(a), blame_b ? other : "", relation, cite(b),
       blame_b ? "" : other, advice.empty() ? "" : "; " + advice);
}

}  // namespace tessera
