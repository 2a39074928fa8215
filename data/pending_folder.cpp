#include "data/pending_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include <chrono>
#include <random>

#include "data/chat/chat_form.h"
#include "data/log_probs.h"
#include "data/manifest.h"
#include "data/teacher_logits.h"
#include "data/tokenizers/load_tokenizer.h"
#include "kernels/base/check.h"
#include "kernels/base/file.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Follows symbolic links, so that the hidden folder is beside the real one, on the same file system.
fs::path resolve(const fs::path& target) {
  check(!target.empty(), "the output folder needs a name");
  std::error_code error;
  fs::path resolved = fs::weakly_canonical(fs::absolute(target), error);
  check(!error, "cannot use the output folder {}: {}", target.string(), error.message());
  return resolved.has_filename() ? resolved
                                 : resolved.parent_path();  // "folder/" has an empty last component
}

void check_replaceable(const fs::path& target, bool replace, const Replaceable& kind) {
  if (!fs::exists(fs::symlink_status(target))) return;
  check(fs::is_directory(target), "the output {} exists and is not a folder: choose another name",
        target.string());
  check(replace, "the output folder {} exists: choose another name, or replace it with --force",
        target.string());
  for (const fs::directory_entry& entry : fs::directory_iterator(target)) {
    const std::string name = entry.path().filename().string();
    check(kind.has_part(name),
          "{} is not replaced: it holds {}, which is not part of {}; choose another name", target.string(),
          name, kind.what);
  }
}

bool is_part_of_dataset(std::string_view name) {
  return name == kManifestName || name == kTokenizerFile || name == kChatTemplateFile ||
         name == kSpecialTokensFile || name == kLogProbsName || name.starts_with(kTeacherLogitsName) ||
         name == kMoreTemplatesFolder ||
         (name.starts_with("train_") && (name.ends_with(".bin") || name.ends_with(".documents")));
}

constexpr const char *kPreparing = "preparing", *kReplaced = "replaced";

// The lock of a folder, which ends with its process; none: another process has it, or no folder can be
// locked here.
Descriptor lock_of(const fs::path& folder) {
  Descriptor held(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  return held.is_open() && flock(held.get(), LOCK_EX | LOCK_NB) == 0 ? std::move(held) : Descriptor();
}

}  // namespace

constinit const Replaceable kPreparedDataset{.what = "a prepared dataset", .has_part = is_part_of_dataset};

PendingFolder::PendingFolder(const fs::path& target, bool replace, const Replaceable& kind)
    : target_(resolve(target)), replace_(replace), kind_(kind) {
  const auto sibling = [&](const char* purpose, unsigned number) {
    return target_.parent_path() / fmt::format(".{}.{}-{:08x}", target_.filename().string(), purpose, number);
  };
  const unsigned number = std::random_device{}();
  pending_ = sibling(kPreparing, number);
  replaced_ = sibling(kReplaced, number);
  try {
    check_replaceable(target_, replace_, kind_);
    make_parents();
    check(fs::create_directory(pending_), "the folder {} exists", pending_.string());
    lock_ = lock_of(pending_);
  } catch (const fs::filesystem_error& error) {
    discard();
    fail("cannot make the output folder {}: {}", target_.string(), error.code().message());
  }
}

PendingFolder::~PendingFolder() { discard(); }

void PendingFolder::make_parents() {
  for (fs::path folder = target_.parent_path(); !fs::exists(folder); folder = folder.parent_path()) {
    first_made_parent_ = folder;
  }
  fs::create_directories(target_.parent_path());
}

void PendingFolder::discard() {
  std::error_code ignored;  // a folder that cannot be removed stays
  fs::remove_all(pending_, ignored);
  if (first_made_parent_.empty()) return;
  // From the innermost up; a folder that is not empty stays.
  for (fs::path folder = target_.parent_path();
       fs::remove(folder, ignored) && folder != first_made_parent_;) {
    folder = folder.parent_path();
  }
}

bool PendingFolder::is_pending(const fs::path& folder) const {
  return folder.filename().string().starts_with(
      fmt::format(".{}.{}-", target_.filename().string(), kPreparing));
}

std::vector<fs::path> PendingFolder::remove_abandoned() const {
  constexpr std::chrono::minutes kAge{1};  // a process that has just made its folder has not locked it yet
  std::vector<fs::path> removed;
  if (!lock_.is_open()) return removed;  // no folder here can be locked
  for (const fs::path& folder : others()) {
    std::error_code error;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(folder, error);
    if (error || age < kAge || !is_pending(folder)) continue;  // a replaced folder may be the only copy
    if (const Descriptor lock = lock_of(folder);
        lock.is_open() && fs::remove_all(folder, error) > 0 && !error)
      removed.push_back(folder);
  }
  return removed;
}

std::vector<fs::path> PendingFolder::others() const {
  std::vector<fs::path> found;
  const std::string lead = fmt::format(".{}.", target_.filename().string());
  for (const fs::directory_entry& entry : fs::directory_iterator(target_.parent_path())) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with(lead + kPreparing + "-") || name.starts_with(lead + kReplaced + "-");
    if (ours && entry.path() != pending_) found.push_back(entry.path());
  }
  return found;
}

void PendingFolder::publish() {
  check_replaceable(target_, replace_, kind_);
  std::error_code error;
  const bool has_old = fs::exists(target_);
  if (has_old) fs::rename(target_, replaced_, error);
  if (!error) {
    fs::rename(pending_, target_, error);
    std::error_code ignored;
    if (error && has_old) fs::rename(replaced_, target_, ignored);
  }
  check(!error, "cannot make the output folder {}: {}", target_.string(), error.message());
  sync_folder(target_.parent_path());
  fs::remove_all(replaced_, error);
  check(!error, "{} is complete, but the folder it replaced cannot be removed: {}: {}", target_.string(),
        replaced_.string(), error.message());
}

}  // namespace tessera
