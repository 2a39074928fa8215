// A configuration in a file of its own, and how it is refused.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/data/support.h"
#include "train/config/load_config.h"

namespace tessera {

struct ConfigFile : InTempFolder {
  Config load(std::string_view yaml, const std::vector<std::string>& overrides = {}) const {
    return load_config(write("run.yaml", yaml), overrides);
  }
  // The message of the refusal, in which files of this test's folder have their bare names.
  std::string refusal_of(const std::function<void()>& call) const {
    try {
      call();
    } catch (const Error& error) {
      std::string message = error.what();
      const std::string folder = folder_.string() + "/";
      for (size_t at; (at = message.find(folder)) != std::string::npos;) message.erase(at, folder.size());
      return message;
    }
    return "accepted";
  }
  std::string refusal(std::string_view yaml, const std::vector<std::string>& overrides = {}) const {
    return refusal_of([&] { load(yaml, overrides); });
  }
  std::string refused_override(const std::string& text) const { return refusal("", {text}); }
};

}  // namespace tessera
