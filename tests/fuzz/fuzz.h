// What the fuzzer's driver and its targets share.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::fuzz {

// Something that reads bytes which anyone may have written.
struct Target {
  std::string name;
  // Reads `bytes`; `folder` is empty, the target's own, and stays between calls. It may refuse them by an
  // Error alone: another exception, a sanitizer's finding and a crash are faults.
  std::function<void(std::string_view bytes, const std::filesystem::path& folder)> read;
  std::vector<std::string> seeds;
  std::vector<std::string> words;  // that it knows, to be put into its input
};

std::vector<Target> targets();

}  // namespace tessera::fuzz
