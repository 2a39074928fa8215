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
//
// The lock is on a file, and a name may come to mean another file: check_held() compares them.
class RunLock {
 public:
  enum class Hold : uint8_t {
    kLock,  // of the rank that writes
    kWatch  // of another rank, which has no lock and is told by check_held() as well
  };
  // Error: the lock is held, with the host, the process and the start of the run that holds it; the file
  // cannot be written.
  explicit RunLock(const std::filesystem::path& folder, Hold hold = Hold::kLock);

  // A notice if the file system has no locks, else ""
  const std::string& notice() const { return notice_; }

  // Call it before anything is written to the folder or removed there; any thread may. Error: what has the
  // folder's name now is not the folder of this lock: it was removed, moved, unmounted or taken over, or the
  // file was removed. It says which, and what to do.
  void check_held() const;

 private:
  void lock();

  std::filesystem::path folder_;
  Descriptor opened_, file_;  // the folder, and run.lock in it
  std::string notice_;
};

// The run that writes to `folder` at the moment, as "process 4711 on the host node7, started ..."; "" if none
// is known: nothing is locked or changed.
std::string run_in(const std::filesystem::path& folder);

}  // namespace tessera
