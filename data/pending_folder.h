// A folder that gets its final name only when it is complete.
#pragma once

#include <filesystem>

namespace tessera {

// Collects files in a hidden folder beside `target`; publish() renames it. Without publish(), the destructor
// removes the hidden folder and the parent folders that were made.
class PendingFolder {
 public:
  // Error: `target` exists and `replace` is false; it exists and holds a file that `prepare` did not write
  // (so that no option can delete a home folder); its parent cannot be made or written.
  PendingFolder(const std::filesystem::path& target, bool replace);
  ~PendingFolder();
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;

  const std::filesystem::path& path() const { return pending_; }  // where to write now

  // Error: `target` was made by another program, or a rename failed; `target` is then unchanged.
  void publish();

 private:
  void make_parents();
  void discard();

  std::filesystem::path target_, pending_, replaced_;  // siblings; replaced_: the old target, until removed
  std::filesystem::path first_made_parent_;            // the topmost folder made here; empty if none
  bool replace_;
};

}  // namespace tessera
