// A lock on a run's folder: two runs that write there at once would corrupt each other's files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kernels/base/descriptor.h"

namespace tessera {

// The kernel holds the lock, on the file run.lock, and releases it when the process ends for any reason. It
// is a lock of an open file description (fcntl's F_OFD_SETLK), which NFS passes to its server: runs on other
// hosts see it. The file says which process holds the lock. It stays after the run, without meaning.
class RunLock {
 public:
  // Error: the lock is held, with the host, the process and the start of the run that holds it; the file
  // cannot be written.
  explicit RunLock(const std::filesystem::path& folder);

  // A notice if the file system has no locks, else ""
  const std::string& notice() const { return notice_; }

 private:
  Descriptor file_;
  std::string notice_;
};

// The run that writes to `folder` at the moment, as "process 4711 on the host node7, started ..."; "" if none
// is known: nothing is locked or changed.
std::string run_in(const std::filesystem::path& folder);

}  // namespace tessera
