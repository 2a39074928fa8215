// RunFolder: the folder of a run: what it holds when the run starts, and what is kept or removed.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/run/run_lock.h"
#include "train/run/trainer_options.h"

namespace tessera {

class RunFolder {
 public:
  // Reads the folder and changes nothing. Rank 0 `leads`: it locks the folder if that exists.
  // Error: results of an earlier run without --resume or --overwrite, nothing to resume, a newer checkpoint
  // that is damaged, another run in the folder, weights to start from that would be removed.
  RunFolder(const Config& config, const TrainerOptions& options, bool leads);

  const std::filesystem::path& path() const { return folder_; }
  const std::filesystem::path& checkpoints() const { return checkpoints_; }
  const std::optional<std::filesystem::path>& checkpoint() const { return checkpoint_; }  // to resume from

  // For rank 0, after all checks: makes the folder, locks it, removes what --overwrite removes. Returns
  // notices. Error: no permission, another run has started in the folder.
  std::vector<std::string> take();

 private:
  void check_free(const Config& config) const;
  void rename_metrics(std::vector<std::string>& notices) const;

  std::filesystem::path folder_, checkpoints_;
  TrainerOptions options_;
  std::optional<std::filesystem::path> latest_, checkpoint_;
  std::optional<RunLock> lock_;
};

}  // namespace tessera
