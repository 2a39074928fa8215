#include "train/run/verify_command.h"

#include <cstdio>

#include "data/dataset_check.h"
#include "data/manifest.h"
#include "kernels/base/check.h"
#include "kernels/base/status_line.h"
#include "kernels/base/text.h"
#include "train/run/checkpoint_files.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/verify_checkpoint.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct Tally {
  int64_t files = 0, bytes = 0, damaged = 0, without_checksum = 0;
};

void print(const std::vector<FileVerdict>& verdicts, Tally& tally) {
  for (const FileVerdict& v : verdicts) {
    ++tally.files;
    tally.bytes += v.bytes;
    tally.damaged += !v.fault.empty();
    tally.without_checksum += v.fault.empty() && !v.has_checksum;
    if (!v.fault.empty())
      fmt::print("{}: {}\n", labelled("damaged", v.path.string()), v.fault);
    else if (!v.has_checksum)
      fmt::print("{}: it has no checksum; its structure is right\n", labelled("unknown", v.path.string()));
    else
      fmt::print("{}, {}\n", labelled("whole", v.path.string()), format_bytes(v.bytes));
    std::fflush(stdout);  // the next file may take long
  }
}

void verify_checkpoints(const fs::path& folder, Tally& tally) {
  const std::vector<NamedCheckpoint> all = named_checkpoints(folder);
  check(!all.empty(), "there is nothing to verify: {} holds no checkpoints", folder.string());
  for (const NamedCheckpoint& one : all) {
    print(verify_checkpoint(one.path), tally);
    if (one.standing == NamedCheckpoint::Standing::kCopy)
      fmt::print("{} is a copy under another name: a run neither resumes from it nor removes it\n",
                 labelled("notice", one.path.string()));
  }
}

}  // namespace

int verify_command(const fs::path& folder) {
  check(fs::is_directory(folder), "--verify {}: this folder does not exist", folder.string());
  Tally tally;
  const auto holds_shards = [&] {
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".bin") return true;
    return fs::exists(folder / kManifestName);
  };
  const auto holds_names_of_checkpoints = [&] { return !named_checkpoints(folder).empty(); };
  if (fs::exists(folder / kStateFile) || fs::exists(folder / kChecksumsFile))
    print(verify_checkpoint(folder), tally);
  else if (fs::is_directory(folder / "checkpoints"))
    verify_checkpoints(folder / "checkpoints", tally);
  else if (holds_names_of_checkpoints())
    verify_checkpoints(folder, tally);
  else if (holds_shards())
    print(verify_dataset(folder), tally);
  else
    fail("--verify {}: this is neither a checkpoint, nor a run's folder, nor a folder of shards",
         folder.string());
  fmt::print(
      "{} files, {}: {} damaged{}\n", tally.files, format_bytes(tally.bytes), tally.damaged,
      tally.without_checksum > 0 ? fmt::format(", {} without a checksum", tally.without_checksum) : "");
  return tally.damaged > 0 ? 1 : 0;
}

}  // namespace tessera
