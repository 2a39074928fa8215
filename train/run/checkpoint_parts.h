// A checkpoint whose files are on the disks of several machines: which one a run goes on from, and how each
// disk gets what it lacks of it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/file_checksums.h"
#include "kernels/communicator.h"
#include "train/parallel/ranks.h"
#include "train/run/disks.h"

namespace tessera {

// What a rank tells the others of its disk, and hears of theirs. All ranks make these calls together.
struct OnDisks {
  std::filesystem::path folder;  // `checkpoints` of the run, on each disk
  int64_t rank;
  const Disks& disks;
  Exchange exchange;
};

// The newest checkpoint that is finished; a run that was killed while the disks gave it its name has not
// finished it. Its path is the same on each disk. Error: no disk has one of its files; it names the file, the
// machine that wrote it, and what to do. Two disks have checkpoints of two runs.
std::optional<std::filesystem::path> newest_on_disks(const OnDisks& on);

// A file that a disk lacks, and the rank that leads a disk which has it
struct MovedFile {
  std::string name;
  FileChecksum sum;
  int64_t from;
  std::vector<int64_t> to;  // the ranks that lead the disks which lack it
};
// Equal at all ranks
std::vector<MovedFile> files_to_move(const OnDisks& on, const std::filesystem::path& checkpoint);

// Copies them from rank to rank, 16 MiB at a time, and finishes the checkpoint on the disks that lack it.
// `all`: a communicator of all ranks. Error: a file that arrives has another checksum; a disk is full.
void move_files(const OnDisks& on, const std::filesystem::path& checkpoint,
                const std::vector<MovedFile>& files, Backend& be, Communicator& all);

}  // namespace tessera
