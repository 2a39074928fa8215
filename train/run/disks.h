// Disks: which ranks of a run find the same files under its folder. On machines without a shared file system
// each has a part of every checkpoint.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/parallel/ranks.h"

namespace tessera {

class RankGroup;

class Disks {
 public:
  Disks() = default;  // one, which rank 0 leads
  // leaders: of each rank the first one that shares its disk
  Disks(std::vector<int64_t> leaders, std::vector<std::string> machines)
      : leaders_(std::move(leaders)), machines_(std::move(machines)) {}

  bool several() const;
  // The rank that makes and locks the run's folder of its disk, and writes there what is no tensor
  bool leads(int64_t rank) const { return leader_of(rank) == rank; }
  int64_t leader_of(int64_t rank) const { return leaders_.empty() ? 0 : leaders_[static_cast<size_t>(rank)]; }
  const std::string& machine_of(int64_t rank) const { return machines_[static_cast<size_t>(rank)]; }
  // The first `count` ranks to write files: the disks take turns. The order of ranks if there is one disk
  std::vector<int64_t> writers(int64_t ranks) const;

 private:
  std::vector<int64_t> leaders_;
  std::vector<std::string> machines_;  // for people: their names, each rank's
};

// All ranks call it. Ranks of one machine share its disk. Those of several look for one another's files:
// each writes one beside `folder`, or in it, and removes it. Error: there is no permission to write there.
Disks find_disks(const std::filesystem::path& folder, RankGroup& ranks);

// Facts of files that all ranks have to have: size and checksum of a sample, a line each. Of a folder those
// of every file in it, in the order of names.
std::string lines_of_files(const std::filesystem::path& path);

}  // namespace tessera
