#include "train/run/checkpoint_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char *kChecksumsFormat = "tessera checksums 1", *kMachinesFormat = "tessera machines 1";

}  // namespace

CopiedFiles read_copied_files(const fs::path& folder) {
  CopiedFiles files;
  const auto add = [&](const std::string& name) {
    const MappedFile file(folder / name);
    files[name].assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  };
  for (const std::string_view name : kCopiedFiles)
    if (fs::exists(folder / name)) add(std::string(name));
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder / kTemplatesFolder, none)) {
    const std::string name = fmt::format("{}/{}", kTemplatesFolder, entry.path().filename().string());
    if (is_further_template(name) && entry.is_regular_file()) add(name);
  }
  return files;
}

FileChecksums write_copied_files(const fs::path& folder, const CopiedFiles& files) {
  FileChecksums written;
  for (const auto& [name, bytes] : files) {
    std::error_code error;
    if (is_further_template(name)) fs::create_directory(folder / kTemplatesFolder, error);
    check(!error, "cannot make the folder {}: {}", (folder / kTemplatesFolder).string(), error.message());
    written[name] = write_file(folder / name, bytes);
  }
  return written;
}

bool is_further_template(std::string_view name) {
  const std::string_view folder = kTemplatesFolder;
  return name.starts_with(folder) && name.find('/') == folder.size() && name.rfind('/') == folder.size() &&
         name.ends_with(".jinja");
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

std::string tensor_file_name(std::string_view stem, size_t part, size_t parts) {
  if (parts == 1) return fmt::format("{}.safetensors", stem);
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, part + 1, parts);
}

std::string index_name(std::string_view stem) { return fmt::format("{}.safetensors.index.json", stem); }

std::string rank_file_name(int64_t rank) { return fmt::format("rank_{:05}.json", rank); }

bool is_tensor_file(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem)) return false;
  static const std::regex rest("(-[0-9]{5}-of-[0-9]{5})?\\.safetensors|\\.safetensors\\.index\\.json");
  return std::regex_match(std::string(name.substr(stem.size())), rest);
}

bool is_checkpoint_file(std::string_view name) {
  static const std::regex of_a_rank("rank_[0-9]{5}\\.json");
  if (is_tensor_file(name, kWeightsStem) || is_tensor_file(name, kOptimizerStem) ||
      std::regex_match(std::string(name), of_a_rank))
    return true;
  return is_further_template(name) || std::ranges::find(kCheckpointFiles, name) != kCheckpointFiles.end() ||
         std::ranges::find(kCopiedFiles, name) != kCopiedFiles.end();
}

std::string checksums_text(const FileChecksums& files) {
  const nlohmann::ordered_json json{{"format", kChecksumsFormat}, {"files", json_of(files)}};
  return json.dump(2) + "\n";
}

FileChecksums read_checksums_file(const fs::path& path) {
  const nlohmann::json json = read_json(path);
  const std::string format = text_value(json, "format", path.string());
  check(format == kChecksumsFormat, "{} has the format {}, expected \"{}\"", path.string(),
        brief(json["format"]), kChecksumsFormat);
  check(json.contains("files"), "{} lacks \"files\"", path.string());
  FileChecksums files = read_checksums(json["files"], path.string());
  const MappedFile found(path);
  const std::string written = checksums_text(files);
  check(std::ranges::equal(found.bytes(), std::as_bytes(std::span(written))),
        "{} has other bytes than were written", path.string());
  return files;
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
  FileChecksums files = read_checksums_file(path);
  for (const char* file : {kModelFile, kStateFile})
    check(files.contains(file), "{} lacks the checksum of {}", path.string(), file);
  for (const char* stem : {kWeightsStem, kOptimizerStem}) {
    const std::string file = tensor_file_name(stem, 0, 1);
    check(files.contains(file) || files.contains(index_name(stem)), "{} lacks the checksum of {}",
          path.string(), file);
  }
  return files;
}

std::string machines_text(const std::map<std::string, std::string>& machine_of_file) {
  const nlohmann::ordered_json json{{"format", kMachinesFormat}, {"files", machine_of_file}};
  return json.dump(2) + "\n";
}

std::string machine_of_file(const fs::path& checkpoint, const std::string& file) {
  if (!fs::exists(checkpoint / kMachinesFile)) return "";
  const nlohmann::json files = read_json(checkpoint / kMachinesFile).value("files", nlohmann::json::object());
  return files.is_object() && files.contains(file) && files[file].is_string() ? files[file].get<std::string>()
                                                                              : "";
}

}  // namespace tessera
