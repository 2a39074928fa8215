// A folder that gets its final name only when it is complete.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "kernels/base/descriptor.h"

namespace tessera {

// The kind of folder that may be replaced, by what it holds, so that no option can delete a home folder
struct Replaceable {
  const char* what;                         // for messages
  bool (*has_part)(std::string_view name);  // whether a file of this name is part of it
};
extern const Replaceable kPreparedDataset;

// Collects files in a hidden folder beside `target`; publish() renames it. Without publish(), the destructor
// removes the hidden folder and the parent folders that were made.
class PendingFolder {
 public:
  // Error: `target` exists and `replace` is false; `target` exists and holds a file that is not part of such
  // a folder; its parent folder cannot be made or written.
  PendingFolder(const std::filesystem::path& target, bool replace,
                const Replaceable& kind = kPreparedDataset);
  ~PendingFolder();
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;

  const std::filesystem::path& path() const { return pending_; }  // where to write now
  // Hidden folders beside the target that other processes began; some of these processes may have been killed
  std::vector<std::filesystem::path> others() const;
  // Removes those whose process is gone. Returns what was removed.
  std::vector<std::filesystem::path> remove_abandoned() const;

  // Error: `target` was made by another program, or a rename failed; `target` is then unchanged.
  void publish();

 private:
  void make_parents();
  void discard();
  bool is_pending(const std::filesystem::path& folder) const;

  std::filesystem::path target_, pending_, replaced_;  // siblings; replaced_: the old target, until removed
  std::filesystem::path first_made_parent_;            // the topmost folder made here; empty if none
  bool replace_;
  const Replaceable& kind_;
  Descriptor lock_;  // a lock of pending_, held as long as this process lives
};

}  // namespace tessera
