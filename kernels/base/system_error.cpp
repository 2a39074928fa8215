#include "kernels/base/system_error.h"

#include <cstring>
#include <filesystem>
#include <new>

namespace tessera {
namespace {

// "cannot remove" of "cannot remove: Input/output error"; what is no sentence becomes one
std::string operation_of(const std::filesystem::filesystem_error& error) {
  std::string text = error.std::system_error::what();
  text = text.substr(0, text.find(": " + error.code().message()));
  return text.starts_with("cannot ") ? text : "cannot read";  // "status", "directory iterator ..."
}

}  // namespace

std::string system_reason(int error) { return std::strerror(error); }

std::string error_text(const std::exception& error) {
  if (const auto* of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error))
    return fmt::format("{} {}{}: {}", operation_of(*of_files), of_files->path1().string(),
                       of_files->path2().empty() ? "" : " to " + of_files->path2().string(),
                       of_files->code().message());
  if (dynamic_cast<const std::bad_alloc*>(&error))
    return "the memory of this machine, or the limit that this process has (ulimit -v), is used up";
  return error.what();
}

}  // namespace tessera
