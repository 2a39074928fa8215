#include "kernels/base/file_checksums.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBytes = "bytes";
constexpr const char* kDigits = "xxh3_128";

// Whether it names a file of a folder, or of a folder in it
bool is_within(const std::string& file) {
  const fs::path path(file);
  return path.has_filename() && path.is_relative() && path.lexically_normal() == path &&
         std::ranges::none_of(path, [](const fs::path& part) { return part == ".." || part == "."; });
}

}  // namespace

nlohmann::json json_of(const FileChecksums& files) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, file] : files) json[name] = {{kBytes, file.bytes}, {kDigits, file.checksum}};
  return json;
}

FileChecksums read_checksums(const nlohmann::json& json, const std::string& name) {
  check(json.is_object(), "{}: the checksums must be an object with one entry for each file, found {}", name,
        brief(json));
  FileChecksums files;
  for (const auto& [file, entry] : json.items()) {
    const FileChecksum found{whole_number(entry, kBytes, name), text_value(entry, kDigits, name)};
    const auto is_digit = [](char c) { return ('0' <= c && c <= '9') || ('a' <= c && c <= 'f'); };
    check(found.checksum.size() == 32 && std::ranges::all_of(found.checksum, is_digit),
          "{}: the checksum of {} must be 32 hexadecimal digits, found {}", name, brief(file), brief(entry));
    check(is_within(file), "{}: a checksum must name a file in the same folder, found {}", name, brief(file));
    files[file] = found;
  }
  return files;
}

std::vector<FileVerdict> verify_files(const fs::path& folder, const FileChecksums& files) {
  std::vector<FileVerdict> verdicts;
  for (const auto& [name, expected] : files) {
    FileVerdict verdict{.path = folder / name, .bytes = expected.bytes, .fault = ""};
    try {
      std::error_code error;
      const auto size = static_cast<int64_t>(fs::file_size(verdict.path, error));
      if (error) {
        verdict.fault = error == std::errc::no_such_file_or_directory ? "it is missing" : error.message();
      } else if (size != expected.bytes) {
        verdict.fault = fmt::format("it has {} bytes, and {} were written", size, expected.bytes);
      } else if (const FileChecksum found = checksum_of_file(verdict.path); found != expected) {
        verdict.fault = fmt::format("its checksum is {}, and the checksum of the written file was {}",
                                    found.checksum, expected.checksum);
      }
    } catch (const Error& error) {
      verdict.fault = error.what();
    }
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

}  // namespace tessera
