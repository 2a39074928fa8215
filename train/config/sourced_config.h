// A configuration that remembers where each of its values comes from, for messages
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "train/config/config.h"
#include "train/config/config_values.h"

namespace tessera {

// Where a value comes from. A later origin wins.
enum class Origin : uint8_t {
  kDefault,  // or the folder of train.init_from
  kPreset,
  kFile,
  kOverride,  // --set
};

struct Place {
  Origin origin = Origin::kDefault;
  std::string where = "default";  // file:line:column, --set key=value, preset NAME
};

// A value as print_config() writes it. "" if no key has this name.
std::string value_of(const Config& config, std::string_view key);

class SourcedConfig {
 public:
  Config config;

  void set(const Written& value, Origin origin);  // Error: a value that its key does not accept
  Place place(std::string_view key) const;
  bool is_set(std::string_view key) const { return place(key).origin != Origin::kDefault; }

  // Fails with "where: a ... relation b ...". The place is that of the key whose value has the later origin,
  // or of `a` if both have the same.
  void require(bool holds, std::string_view a, std::string_view relation, std::string_view b,
               const std::string& advice = "") const;

 private:
  std::string cite(std::string_view key) const;  // "model.heads 12"

  std::map<std::string, Place, std::less<>> places_;  // of the keys that were set by something
};

}  // namespace tessera
