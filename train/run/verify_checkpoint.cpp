#include "train/run/verify_checkpoint.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/json_text.h"
#include "model/formats/safetensors.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

bool is_of(CheckpointPart part, const std::string& file) {
  if (part == CheckpointPart::kWeights) return is_tensor_file(file, kWeightsStem);
  return part == CheckpointPart::kAll || !file.ends_with(".safetensors");
}

// The verdict on a file without a checksum
FileVerdict look_at_file(const fs::path& path) {
  FileVerdict verdict{.path = path, .fault = "", .has_checksum = false};
  try {
    verdict.bytes = std::ssize(MappedFile(path).bytes());
    if (path.extension() == ".safetensors") {
      const SafetensorsReader file(path);
    } else {
      read_json(path);
    }
  } catch (const Error& error) {
    verdict.fault = error.what();
  }
  return verdict;
}

// Where a checkpoint's files are on the disks of several machines; "" if the file should be here
std::string fault_of_missing(const fs::path& checkpoint, const std::string& file) {
  const std::string machine = machine_of_file(checkpoint, file);
  if (machine.empty()) return "";
  return fmt::format(
      "{0} is not on this machine: {1} wrote it to its own disk. Copy it from there: scp {1}:{2} {0}",
      (checkpoint / file).string(), machine, fs::absolute(checkpoint / file).string());
}

// Reads all of every earlier one until one is whole.
std::string earlier_whole_checkpoint(const fs::path& checkpoint) {
  const int64_t step = step_of_name(checkpoint.filename().string()).value_or(0);
  std::vector<NamedCheckpoint> all = named_checkpoints(checkpoint.parent_path());
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (one->step >= step || one->standing != NamedCheckpoint::Standing::kCheckpoint) continue;
    const std::vector<FileVerdict> verdicts = verify_checkpoint(one->path);
    if (std::ranges::all_of(verdicts, [](const FileVerdict& v) { return v.fault.empty(); }))
      return one->path.filename().string();
  }
  return "";
}

}  // namespace

std::vector<FileVerdict> verify_checkpoint(const fs::path& checkpoint) {
  FileChecksums files;
  try {
    files = written_checksums(checkpoint);
  } catch (const Error& error) {
    return {{.path = checkpoint / kChecksumsFile, .fault = error.what()}};
  }
  std::vector<FileVerdict> verdicts;
  if (files.empty())
    for (const std::string& file :
         {tensor_file_name(kWeightsStem, 0, 1), tensor_file_name(kOptimizerStem, 0, 1),
          std::string(kModelFile), std::string(kStateFile)})
      verdicts.push_back(look_at_file(checkpoint / file));
  else
    verdicts = verify_files(checkpoint, files);
  for (FileVerdict& verdict : verdicts)
    if (!fs::exists(verdict.path))
      if (const std::string fault =
              fault_of_missing(checkpoint, fs::relative(verdict.path, checkpoint).generic_string());
          !fault.empty())
        verdict.fault = fault;
  return verdicts;
}

bool check_undamaged(const fs::path& checkpoint, CheckpointPart part) {
  std::vector<FileVerdict> verdicts;
  FileChecksums files;
  try {
    files = written_checksums(checkpoint);
    if (files.empty()) return false;
    std::erase_if(files, [&](const auto& file) { return !is_of(part, file.first); });
    verdicts = verify_files(checkpoint, files);
  } catch (const Error& error) {
    verdicts.push_back({.path = checkpoint / kChecksumsFile, .fault = error.what()});
  }
  for (const auto& [name, sum] : files)
    if (!fs::exists(checkpoint / name))
      if (const std::string fault = fault_of_missing(checkpoint, name); !fault.empty()) fail("{}", fault);
  const auto bad = std::ranges::find_if(verdicts, [](const FileVerdict& v) { return !v.fault.empty(); });
  if (bad == verdicts.end()) return true;
  const std::string earlier = earlier_whole_checkpoint(checkpoint);
  fail("{} is damaged: {}. {}", bad->path.string(), bad->fault,
       earlier.empty()
           ? "No earlier checkpoint is whole: start again with --overwrite, or restore this one from a copy"
           : fmt::format("{} is whole: to resume from it, rename the damaged one: mv {} {}.damaged", earlier,
                         checkpoint.string(), checkpoint.string()));
}

}  // namespace tessera
