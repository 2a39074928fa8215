// RunFolder: the folder of a run: what it holds when the run starts, and what is kept or removed.
#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/run/checkpoint_parts.h"
#include "train/run/run_lock.h"
#include "train/run/trainer_options.h"

namespace tessera {

class RunFolder {
 public:
  // Reads the folder and changes nothing. The rank that leads a disk locks the folder if it exists. All
  // ranks of `ranks` make one together. Error: results of an earlier run without --resume or --overwrite,
  // nothing to resume, a newer checkpoint that is damaged, another run in the folder, weights to start from
  // that would be removed.
  RunFolder(const Config& config, const TrainerOptions& options, const Disks& disks, RankGroup& ranks);

  const std::filesystem::path& path() const { return folder_; }
  const std::filesystem::path& checkpoints() const { return checkpoints_; }
  const std::optional<std::filesystem::path>& checkpoint() const { return checkpoint_; }  // to resume from

  // Where several disks have parts of the checkpoint: each gets what it lacks. All ranks call it; not
  // `const`, as disks without the folder make and lock it. Returns notices.
  bool lacks_files();
  std::vector<std::string> bring_files(const std::filesystem::path& checkpoint, Backend& be,
                                       Communicator& all);

  // For the ranks that lead, after all checks: makes the folder, locks it, removes what --overwrite removes.
  // Returns notices. Error: no permission, another run has started in the folder.
  std::vector<std::string> take();

  // After take(), on every rank and thread: see RunLock. Nothing is written or removed in the folder without
  // it.
  void check_held();

  // The steps of the checkpoints that are this run's: those that it wrote, and those that were there when it
  // took the folder, which earlier parts of it wrote. It removes no others.
  std::set<int64_t>& own_checkpoints() { return own_; }

 private:
  void check_free(const Config& config) const;
  void hold();
  void rename_metrics(std::vector<std::string>& notices) const;

  std::filesystem::path folder_, checkpoints_;
  TrainerOptions options_;
  std::optional<std::filesystem::path> latest_, checkpoint_;
  const OnDisks on_;
  const bool leads_;
  std::mutex mutex_;  // of lock_, which other ranks than 0 take when they first write
  std::optional<RunLock> lock_;
  std::set<int64_t> own_;
};

}  // namespace tessera
