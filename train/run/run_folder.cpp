#include "train/run/run_folder.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "kernels/base/text.h"
#include "train/report/metrics.h"
#include "train/run/checkpoint_folder.h"
#include "train/run/rank_group.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A file without losses has only the lines of a run's start: nothing worth keeping.
bool holds_results(const fs::path& metrics) {
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);)
    if (line.find("\"loss\"") != std::string::npos) return true;
  return false;
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(path, error), outer = fs::weakly_canonical(folder, error);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

// A checkpoint that is newer than the one to resume from and cannot be read is an Error, not skipped.
void check_none_newer_is_damaged(const fs::path& folder, const std::optional<fs::path>& latest) {
  const int64_t step = latest ? step_of_name(latest->filename().string()).value_or(0) : 0;
  for (const NamedCheckpoint& one : named_checkpoints(folder))
    check(one.step <= step || one.standing != NamedCheckpoint::Standing::kDamaged,
          "{} is damaged: {}. {}. To skip it, rename it: mv {} {}.damaged", one.path.string(), one.why,
          latest ? fmt::format("The newest checkpoint before it is {}", latest->filename().string())
                 : "There is no checkpoint before it",
          one.path.string(), one.path.string());
}

}  // namespace

RunFolder::RunFolder(const Config& config, const TrainerOptions& options, const Disks& disks,
                     RankGroup& ranks)
    : folder_(config.train.folder),
      checkpoints_(folder_ / "checkpoints"),
      options_(options),
      on_{.folder = checkpoints_,
          .rank = ranks.rank(),
          .disks = disks,
          .exchange = [&ranks](std::string_view mine) { return ranks.exchange(mine); }},
      leads_(disks.leads(ranks.rank())) {
  if (leads_ && fs::is_directory(folder_)) lock_.emplace(folder_);
  latest_ = latest_checkpoint(checkpoints_);
  if (options.resume) {
    const std::optional<fs::path> newest = disks.several() ? newest_on_disks(on_) : latest_;
    check_none_newer_is_damaged(checkpoints_, newest);
    check(
        newest || options.or_start,
        "there is nothing to resume: {} holds no checkpoint. --resume auto starts a new run if there is none",
        checkpoints_.string());
    checkpoint_ = newest;
  } else {
    check_free(config);
  }
}

void RunFolder::check_free(const Config& config) const {
  if (options_.overwrite) {
    check(config.train.init_from.empty() || !lies_in(config.train.init_from, checkpoints_),
          "train.init_from is {}, which --overwrite would remove. Start in another folder with --set "
          "train.folder=NAME, or copy these weights out of {} first",
          config.train.init_from, folder_.string());
    return;
  }
  check(
      !latest_,
      "{} holds checkpoints of an earlier run. Add --resume to continue from {}, --overwrite to remove them "
      "and start again, or choose another folder with --set train.folder=NAME",
      folder_.string(), latest_ ? latest_->filename().string() : "");
  check_none_newer_is_damaged(checkpoints_, latest_);
  check(!holds_results(folder_ / kMetricsFile),
        "{} holds {} of an earlier run that wrote no checkpoint. Add --overwrite to start again and lose it, "
        "--resume auto to start again and keep it under another name, or choose another folder with --set "
        "train.folder=NAME",
        folder_.string(), kMetricsFile);
}

void RunFolder::rename_metrics(std::vector<std::string>& notices) const {
  if (!holds_results(folder_ / kMetricsFile)) return;
  std::string kept;
  for (int i = 1; kept.empty() || fs::exists(folder_ / kept); ++i) kept = fmt::format("metrics-{}.jsonl", i);
  fs::rename(folder_ / kMetricsFile, folder_ / kept);
  notices.push_back(
      fmt::format("an earlier run wrote no checkpoint; its {} was renamed to {}", kMetricsFile, kept));
}

bool RunFolder::lacks_files() {
  return on_.disks.several() && checkpoint_ && !files_to_move(on_, *checkpoint_).empty();
}

void RunFolder::hold() {
  fs::create_directories(folder_);
  if (!lock_) lock_.emplace(folder_);
}

std::vector<std::string> RunFolder::bring_files(const fs::path& checkpoint, Backend& be, Communicator& all) {
  std::vector<std::string> notices;
  if (!on_.disks.several()) return notices;
  const std::vector<MovedFile> files = files_to_move(on_, checkpoint);
  if (files.empty()) return notices;
  if (leads_) hold();
  move_files(on_, checkpoint, files, be, all);
  std::map<int64_t, std::pair<int64_t, int64_t>> got;  // by rank: files and bytes
  for (const MovedFile& file : files)
    for (const int64_t to : file.to) ++got[to].first, got[to].second += file.sum.bytes;
  for (const auto& [rank, found] : got)
    notices.push_back(fmt::format("{} (rank {}) lacked files of {}: {} of {} in all came from other machines",
                                  on_.disks.machine_of(rank), rank, checkpoint.filename().string(),
                                  found.first, format_bytes(found.second)));
  return notices;
}

std::vector<std::string> RunFolder::take() {
  std::vector<std::string> notices;
  try {
    fs::create_directories(folder_);
    if (!lock_) {
      lock_.emplace(folder_);
      // The folder did not exist when it was inspected: another run may have started and ended since.
      check(latest_checkpoint(checkpoints_) == latest_ && !holds_results(folder_ / kMetricsFile),
            "another run has used {} since this one started. Start this run again", folder_.string());
    }
    if (!lock_->notice().empty()) notices.push_back(lock_->notice());
    check_held();
    if (options_.overwrite) remove_checkpoints(checkpoints_);
    if (options_.resume && !checkpoint_) rename_metrics(notices);
    own_ = steps_in(checkpoints_);
  } catch (const fs::filesystem_error& error) {
    fail("cannot write to the run's folder {}: {}. Choose another with --set train.folder=NAME",
         folder_.string(), error.code().message());
  }
  return notices;
}

void RunFolder::check_held() {
  const std::lock_guard guard(mutex_);
  if (!leads_ && !lock_) lock_.emplace(folder_, RunLock::Hold::kWatch);
  present(lock_).check_held();
}

}  // namespace tessera
