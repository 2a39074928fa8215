// A folder that appears under its name only when all of it is there.
#pragma once

#include <filesystem>

namespace tessera {

// Collects files in a hidden folder beside `target`; publish() renames it. Destroyed without publish(), it
// removes the hidden folder and the parent folders that it had to make.
class PendingFolder {
 public:
  // Error: `target` exists and `replace` is false; it exists and holds anything that is not a dataset made by
  // prepare (so that no option can delete a home folder); its parent cannot be made or written.
  PendingFolder(const std::filesystem::path& target, bool replace);
  ~PendingFolder();
  PendingFolder(const PendingFolder&) = delete;
  PendingFolder& operator=(const PendingFolder&) = delete;

  const std::filesystem::path& path() const { return pending_; }  // where to write now

  // Error: `target` has appeared meanwhile, or the system refuses a rename; `target` is then as it was.
  void publish();

 private:
  void make_parents();
  void discard();

  std::filesystem::path target_, pending_,
      replaced_;                             // siblings; the old target waits at replaced_ for its removal
  std::filesystem::path first_made_parent_;  // the topmost folder made here; empty if none
  bool replace_;
};

}  // namespace tessera
