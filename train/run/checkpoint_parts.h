// A checkpoint whose files are on the disks of several machines: which one a run continues from, and how each
// disk gets the files that it lacks.
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

// A rank's view of the disks. The functions below exchange it, so all ranks call them together.
struct OnDisks {
  std::filesystem::path folder;  // `checkpoints` of the run, on each disk
  int64_t rank;
  const Disks& disks;
  Exchange exchange;
};

// The newest finished checkpoint. If a run was killed while the disks gave a checkpoint its name, it is not
// finished. The path is the same on each disk. Error: no disk has one of the checkpoint's files; the message
// names the file and the machine that wrote it, and says what to do. Error: two disks have checkpoints of
// different runs.
std::optional<std::filesystem::path> newest_on_disks(const OnDisks& on);

// A file that some disks lack, and the rank that leads a disk which has it
struct MovedFile {
  std::string name;
  FileChecksum sum;
  int64_t from;
  std::vector<int64_t> to;  // the ranks that lead the disks which lack it
};
// The files to copy; equal on all ranks
std::vector<MovedFile> files_to_move(const OnDisks& on, const std::filesystem::path& checkpoint);

// Copies the files from rank to rank, 16 MiB at a time, and finishes the checkpoint on the disks that lacked
// some. `all`: a communicator of all ranks. Error: a file arrives with another checksum; a disk is full.
void move_files(const OnDisks& on, const std::filesystem::path& checkpoint,
                const std::vector<MovedFile>& files, Backend& be, Communicator& all);

}  // namespace tessera
