#include "data/dataset_check.h"

#include <algorithm>

#include "data/manifest.h"
#include "data/shard.h"
#include "kernels/base/check.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

FileVerdict look_at_shard(const fs::path& path) {
  FileVerdict verdict{.path = path, .fault = "", .has_checksum = false};
  try {
    const MappedFile file(path);
    verdict.bytes = std::ssize(file.bytes());
    shard_tokens(file);
  } catch (const Error& error) {
    verdict.fault = error.what();
  }
  return verdict;
}

}  // namespace

std::vector<FileVerdict> verify_dataset(const fs::path& folder) {
  const std::optional<Manifest> manifest = read_manifest(folder);
  std::vector<FileVerdict> verdicts;
  if (manifest && !manifest->files.empty()) verdicts = verify_files(folder, manifest->files);
  for (const fs::path& shard : shards_in(folder)) {
    const bool verified = std::ranges::any_of(verdicts, [&](const auto& v) { return v.path == shard; });
    if (!verified) verdicts.push_back(look_at_shard(shard));
  }
  return verdicts;
}

std::string verify_at_start(const TokenStream& stream, int64_t most_bytes) {
  if (!fs::is_directory(stream.path())) return "";
  const std::optional<Manifest> manifest = read_manifest(stream.path());
  if (!manifest || manifest->files.empty()) return "";
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest->files) bytes += file.bytes;
  if (bytes > most_bytes)
    return fmt::format("{} is too large to be verified at the start; verify it with ./train --verify {}",
                       stream.path().string(), stream.path().string());
  for (const FileVerdict& verdict : verify_files(stream.path(), manifest->files))
    check(verdict.fault.empty(),
          "{} is damaged: {}. Copy the folder again, or prepare it again with ./prepare",
          verdict.path.string(), verdict.fault);
  return "";
}

}  // namespace tessera
