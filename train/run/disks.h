// Disks: which ranks of a run see the same files in its folder. On machines without a shared file system,
// each machine's disk has a part of every checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/parallel/ranks.h"

namespace tessera {

class RankGroup;

class Disks {
 public:
  Disks() = default;  // one disk, which rank 0 leads
  // leaders: for each rank, the first rank that shares its disk
  Disks(std::vector<int64_t> leaders, std::vector<std::string> machines)
      : leaders_(std::move(leaders)), machines_(std::move(machines)) {}

  bool several() const;
  // Whether `rank` leads its disk: it makes and locks the run's folder there, and writes the files without
  // tensors
  bool leads(int64_t rank) const { return leader_of(rank) == rank; }
  int64_t leader_of(int64_t rank) const { return leaders_.empty() ? 0 : leaders_[static_cast<size_t>(rank)]; }
  const std::string& machine_of(int64_t rank) const { return machines_[static_cast<size_t>(rank)]; }
  // The first `ranks` ranks in the order in which they write files: from each disk in turn. With one disk: in
  // the order of ranks
  std::vector<int64_t> writers(int64_t ranks) const;

 private:
  std::vector<int64_t> leaders_;
  std::vector<std::string> machines_;  // for people: the name of each rank's machine
};

// All ranks call it. Ranks of one machine share its disk. To learn whether machines share one, each machine
// writes a file next to `folder`, or in it, looks for the others' files, and removes its own. Error: there is
// no permission to write there.
Disks find_disks(const std::filesystem::path& folder, RankGroup& ranks);

// Facts about files that all ranks must have: the size and the checksum of a sample, one line for each file.
// For a folder: every file in it, in the order of names.
std::string lines_of_files(const std::filesystem::path& path);

}  // namespace tessera
