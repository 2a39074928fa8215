// A folder in the system's folder for temporary files (TMPDIR), removed with all that is in it.
#pragma once

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "kernels/base/check.h"
#include "kernels/base/system_error.h"

namespace tessera {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera_prove_XXXXXX").string();
    check_system(mkdtemp(name.data()) != nullptr,
                 "cannot make the folder {}: {}. Name another place with TMPDIR", name);
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tessera
