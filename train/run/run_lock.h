// A lock on a run's folder: two runs that write there at once would spoil each other's work.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kernels/base/descriptor.h"

namespace tessera {

// The lock is the kernel's, on the file run.lock, and ends with the process however that ends. It is a lock
// of an open file description (fcntl's F_OFD_SETLK), which NFS passes to its server: runs on other hosts see
// it. The file says who holds it; it stays when the run ends, and means nothing then.
class RunLock {
 public:
  // Error: the lock is held, with the host, the process and the start of the run that holds it; the file
  // cannot be written.
  explicit RunLock(const std::filesystem::path& folder);

  // Where the file system has no locks: what to tell the user; else "".
  const std::string& notice() const { return notice_; }

 private:
  Descriptor file_;
  std::string notice_;
};

}  // namespace tessera
