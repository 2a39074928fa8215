#include "train/run/checkpoint_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kChecksumsFormat = "tessera checksums 1";

}  // namespace

CopiedFiles read_copied_files(const fs::path& folder) {
  CopiedFiles files;
  for (const std::string_view name : kCopiedFiles) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) continue;
    const MappedFile file(path);
    files[std::string(name)].assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  }
  return files;
}

nlohmann::json read_token_ids(const fs::path& folder) {
  const nlohmann::json config = read_json(folder / kModelFile);
  nlohmann::json ids = nlohmann::json::object();
  for (const char* field : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    const auto found = config.find(field);
    if (found != config.end() && (found->is_number_integer() || found->is_array())) ids[field] = *found;
  }
  return ids;
}

bool is_checkpoint_file(std::string_view name) {
  return std::ranges::find(kCheckpointFiles, name) != kCheckpointFiles.end() ||
         std::ranges::find(kCopiedFiles, name) != kCopiedFiles.end();
}

std::string checksums_text(const FileChecksums& files) {
  const nlohmann::ordered_json json{{"format", kChecksumsFormat}, {"files", json_of(files)}};
  return json.dump(2) + "\n";
}

FileChecksums written_checksums(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kChecksumsFile;
  if (!fs::exists(path)) {
    if (!fs::exists(checkpoint / kStateFile)) return {};  // another program's
    const nlohmann::json state = read_json(checkpoint / kStateFile);
    check(state.is_object() && state.value("format", nlohmann::json()) == kStateWithoutChecksums,
          "{} is missing", path.string());
    return {};
  }
  const nlohmann::json json = read_json(path);
  const std::string format = text_value(json, "format", path.string());
  check(format == kChecksumsFormat, "{} has the format {}, expected \"{}\"", path.string(),
        brief(json["format"]), kChecksumsFormat);
  check(json.contains("files"), "{} lacks \"files\"", path.string());
  FileChecksums files = read_checksums(json["files"], path.string());
  for (const char* file : {kWeightsFile, kOptimizerFile, kModelFile, kStateFile})
    check(files.contains(file), "{} lacks the checksum of {}", path.string(), file);
  const MappedFile found(path);  // it has no checksum of its own: every byte has to be as it was written
  const std::string written = checksums_text(files);
  check(std::ranges::equal(found.bytes(), std::as_bytes(std::span(written))),
        "{} has other bytes than were written", path.string());
  return files;
}

}  // namespace tessera
