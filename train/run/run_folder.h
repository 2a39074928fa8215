// RunFolder: the folder of a run. It knows what the folder holds when the run starts, and what is removed
// from it.
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
  // Reads the folder and changes nothing, except that the rank that leads a disk locks the folder if it
  // exists. All ranks of `ranks` make their objects together. Error: there are results of an earlier run
  // without --resume or --overwrite; there is nothing to resume; a newer checkpoint is damaged; another run
  // uses the folder; the weights to start from would be removed.
  RunFolder(const Config& config, const TrainerOptions& options, const Disks& disks, RankGroup& ranks);

  const std::filesystem::path& path() const { return folder_; }
  const std::filesystem::path& checkpoints() const { return checkpoints_; }
  const std::optional<std::filesystem::path>& checkpoint() const {
    return checkpoint_;
  }  // the checkpoint to
     // resume from

  // If several disks have parts of the checkpoint, each gets the files that it lacks. All ranks call these
  // functions. They are not `const`, because disks without the folder make and lock it. Returns notices.
  bool lacks_files();
  std::vector<std::string> bring_files(const std::filesystem::path& checkpoint, Backend& be,
                                       Communicator& all);

  // On ranks that lead a disk, after all checks: makes the folder, locks it, and removes what --overwrite
  // removes. Returns notices. Error: no permission; another run has started in the folder.
  std::vector<std::string> take();

  // Call it after take(), on any rank and thread, before anything is written or removed in the folder: see
  // RunLock.
  void check_held();

  // The steps of this run's own checkpoints: those that it wrote, and those that were in the folder when the
  // run took it, because earlier parts of the run wrote these. It removes no others.
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
  std::mutex mutex_;  // guards lock_, which ranks other than 0 take when they first write
  std::optional<RunLock> lock_;
  std::set<int64_t> own_;
};

}  // namespace tessera
