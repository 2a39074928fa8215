#include "train/run/checkpoint_folder.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/system_error.h"
#include "train/run/checkpoint_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Standing = NamedCheckpoint::Standing;

constexpr std::string_view kPrefix = "step_", kUnfinished = ".unfinished", kTemporary = ".tmp";
constexpr std::string_view kReplaced = ".replaced", kRemoved = ".removed", kMoved = ".moved";

bool is_file_of_ours(std::string_view name) {
  if (name.ends_with(kTemporary)) name.remove_suffix(kTemporary.size());
  return is_checkpoint_file(name);
}

// The files of a checkpoint, and its folders after what they hold. `others`: there is more.
struct Contents {
  std::vector<fs::path> ours;
  bool others = false;

  explicit Contents(const fs::path& checkpoint) {
    std::vector<fs::path> folders;
    for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
      const std::string name = entry.path().lexically_relative(checkpoint).generic_string();
      if ((name == kAdapterFolder || name == kTemplatesFolder) && entry.is_directory() && !entry.is_symlink())
        folders.push_back(entry.path());
      else if (is_file_of_ours(name))
        ours.push_back(entry.path());
      else
        others = true;
    }
    ours.insert(ours.end(), folders.begin(), folders.end());
  }
};

bool is_unfinished_name(std::string_view name) {
  if (!name.ends_with(kUnfinished)) return false;
  name.remove_suffix(kUnfinished.size());
  for (const std::string_view part : {kReplaced, kRemoved, kMoved})
    if (name.ends_with(part)) {
      name.remove_suffix(part.size());
      break;
    }
  return step_of_name(name).has_value();
}

// In a folder that was renamed for removal. Files of other programs stay, and then the folder stays too.
void remove_our_files(const fs::path& folder) {
  for (const fs::path& one : Contents(folder).ours)
    if (!fs::is_directory(one) || fs::is_empty(one)) fs::remove(one);
  if (fs::is_empty(folder)) fs::remove(folder);
}

// Whether it worked. If not, `failures` gets the reason.
bool try_to(const std::function<void()>& remove, std::vector<std::string>& failures) {
  try {
    remove();
    return true;
  } catch (const std::exception& error) {
    failures.push_back(error_text(error));
    return false;
  }
}

// Renamed first: a checkpoint that is half removed must not look like a whole one.
void remove_checkpoint(const fs::path& checkpoint) {
  if (!holds_only_our_files(checkpoint)) return;
  const fs::path renamed = checkpoint.string() + std::string(kRemoved) + std::string(kUnfinished);
  if (fs::exists(renamed)) remove_our_files(renamed);
  fs::rename(checkpoint, renamed);
  sync_folder(checkpoint.parent_path());
  remove_our_files(renamed);
}

void inspect(NamedCheckpoint& found) {
  try {
    if (read_step(found.path) == found.step) return;
    // An undamaged copy under another name; otherwise the step itself may be damaged.
    const FileChecksums files = written_checksums(found.path);
    const auto state = files.find(kStateFile);
    const bool whole = state == files.end() || checksum_of_file(found.path / kStateFile) == state->second;
    found.standing = whole ? Standing::kCopy : Standing::kDamaged;
    found.why = fmt::format("its {} names another step", kStateFile);
  } catch (const std::exception& error) {
    found.standing = Standing::kDamaged;
    found.why = error_text(error);
  }
}

std::vector<NamedCheckpoint> names_in(const fs::path& folder) {  // by step, not inspected
  std::vector<NamedCheckpoint> found;
  if (!fs::is_directory(folder)) return found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (const auto step = step_of_name(entry.path().filename().string()); step && entry.is_directory())
      found.push_back({.step = *step, .path = entry.path()});
  std::ranges::sort(found, {}, &NamedCheckpoint::step);
  return found;
}

}  // namespace

bool holds_only_our_files(const fs::path& checkpoint) { return !Contents(checkpoint).others; }

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::optional<int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const std::string_view digits = name.substr(kPrefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool ours = error == std::errc() && end == digits.data() + digits.size() && step > 0 &&
                    name == checkpoint_name(step);  // no other way to write the number
  return ours ? std::optional(step) : std::nullopt;
}

fs::path unfinished(const fs::path& checkpoint) { return checkpoint.string() + std::string(kUnfinished); }

fs::path name_while_moved(const fs::path& checkpoint) {
  return unfinished(checkpoint.string() + std::string(kMoved));
}

std::vector<NamedCheckpoint> named_checkpoints(const fs::path& folder) {
  std::vector<NamedCheckpoint> found = names_in(folder);
  for (NamedCheckpoint& one : found) inspect(one);
  return found;
}

std::optional<fs::path> latest_checkpoint(const fs::path& folder) {
  std::vector<NamedCheckpoint> all = names_in(folder);
  for (; !all.empty(); all.pop_back()) {
    inspect(all.back());
    if (all.back().standing == Standing::kCheckpoint) return all.back().path;
  }
  return std::nullopt;
}

std::set<int64_t> steps_in(const fs::path& folder) {
  std::set<int64_t> steps;
  for (const NamedCheckpoint& one : names_in(folder)) steps.insert(one.step);
  return steps;
}

std::set<int64_t> unfinished_steps_in(const fs::path& folder) {
  std::set<int64_t> steps;
  if (!fs::is_directory(folder)) return steps;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(kUnfinished)) continue;
    const auto step = step_of_name(name.substr(0, name.size() - kUnfinished.size()));
    if (step) steps.insert(*step);
  }
  return steps;
}

std::vector<std::string> prune_checkpoints(const fs::path& folder, const KeepRule& keep,
                                           const Removable& removable) {
  std::vector<std::string> failures;
  if (keep.newest == 0) return failures;
  std::vector<NamedCheckpoint> all = names_in(folder);
  int64_t newer = 0;
  for (auto one = all.rbegin(); one != all.rend(); ++one) {
    if (removable.own && !removable.own->contains(one->step)) continue;
    const bool spared = (keep.every > 0 && one->step % keep.every == 0) || one->step == keep.best ||
                        keep.before_bad_steps.contains(one->step);
    if (newer >= keep.newest && spared)
      continue;  // most checkpoints of a long run: not inspected, to save time
    inspect(*one);
    if (one->standing != Standing::kCheckpoint) continue;
    if (newer++ < keep.newest) continue;
    removable.check();
    if (!try_to([&] { remove_checkpoint(one->path); }, failures)) continue;
    if (removable.own) removable.own->erase(one->step);
  }
  return failures;
}

void remove_checkpoints(const fs::path& folder) {
  for (const NamedCheckpoint& one : named_checkpoints(folder))
    if (one.standing != Standing::kCopy) remove_checkpoint(one.path);
  for (const std::string& failure : remove_unfinished(folder)) fail("{}", failure);
  if (fs::is_directory(folder) && fs::is_empty(folder)) fs::remove(folder);
}

std::vector<std::string> remove_unfinished(const fs::path& folder) {
  std::vector<std::string> failures;
  if (!fs::is_directory(folder)) return failures;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (is_unfinished_name(entry.path().filename().string()) && entry.is_directory() && !entry.is_symlink())
      found.push_back(entry.path());
  for (const fs::path& path : found) try_to([&] { remove_our_files(path); }, failures);
  return failures;
}

fs::path exchange(const fs::path& pending, const fs::path& taken) {
  if (renameat2(AT_FDCWD, pending.c_str(), AT_FDCWD, taken.c_str(), RENAME_EXCHANGE) == 0) return pending;
  const fs::path moved_to = taken.string() + std::string(kReplaced) + std::string(kUnfinished);
  fs::rename(taken, moved_to);
  fs::rename(pending, taken);
  return moved_to;
}

void give_name(const fs::path& pending, const fs::path& checkpoint, bool replaces) {
  if (!fs::exists(fs::symlink_status(checkpoint))) return fs::rename(pending, checkpoint);
  NamedCheckpoint found{.step = step_of_name(checkpoint.filename().string()).value_or(0), .path = checkpoint};
  bool ours = replaces && fs::is_directory(checkpoint) && !fs::is_symlink(checkpoint) &&
              holds_only_our_files(checkpoint);
  if (ours) {
    inspect(found);
    ours = found.standing != Standing::kCopy;
  }
  if (ours) {
    exchange(pending, checkpoint);
    return;
  }
  std::string moved_to;
  for (int i = 1; moved_to.empty() || fs::exists(moved_to); ++i)
    moved_to = fmt::format("{}.found{}", checkpoint.string(), i == 1 ? "" : std::to_string(i));
  fs::rename(checkpoint, moved_to);
  fs::rename(pending, checkpoint);
}

}  // namespace tessera
