// Real inputs, too large for this repository. The environment variable TESSERA_SHARED_DATA names their
// folder.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace tessera::testing {

struct SharedFile {
  std::filesystem::path path;
  std::string missing;  // why the file cannot be used, for GTEST_SKIP; empty if it can
};

inline SharedFile shared_data(const std::string& name) {
  const char* folder = std::getenv("TESSERA_SHARED_DATA");
  if (folder == nullptr || *folder == '\0') {
    return {.path = {}, .missing = "TESSERA_SHARED_DATA is not set: it names the folder of " + name};
  }
  const auto path = std::filesystem::absolute(folder) / name;
  if (access(path.c_str(), R_OK) == 0) return {.path = path, .missing = {}};
  return {.path = path, .missing = "TESSERA_SHARED_DATA=" + std::string(folder) + " has no readable " + name};
}

}  // namespace tessera::testing
