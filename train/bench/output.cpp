#include "train/bench/output.h"

#include <filesystem>
#include <fstream>

#include "kernels/base/check.h"

namespace tessera {

void check_writable(const std::string& path) {
  namespace fs = std::filesystem;
  // A pipe's reader would take a first opening for all there is.
  if (path.empty() || (fs::exists(path) && !fs::is_regular_file(path) && !fs::is_directory(path))) return;
  check(std::ofstream(path, std::ios::app).good(), "cannot write {}", path);
}

void write_output(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  std::ofstream file(path);
  file << text;
  file.flush();
  check(file.good(), "cannot write {}", path);
}

}  // namespace tessera
