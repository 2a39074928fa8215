// A lock on a run's folder: two runs that write there at once would corrupt each other's files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "kernels/base/descriptor.h"

namespace tessera {

// The kernel holds the lock, on the file run.lock, and releases it when the process ends for any reason. It
// is a lock of an open file description (fcntl's F_OFD_SETLK), which NFS passes to its server, so runs on
// other hosts see it. The file says which process holds the lock. It remains after the run, and then has no
// meaning.
//
// The lock is on a file, and the file's name may later belong to another file: check_held() compares the two.
class RunLock {
 public:
  enum class Hold : uint8_t {
    kLock,  // for the rank that writes
    kWatch  // for another rank, which holds no lock; check_held() still tells it of a change
  };
  // Error: the lock is held, with the host, the process and the start of the run that holds it; or the file
  // cannot be written.
  explicit RunLock(const std::filesystem::path& folder, Hold hold = Hold::kLock);

  // A notice if the file system does not support locks, else ""
  const std::string& notice() const { return notice_; }

  // Call it before anything is written to the folder or removed there; any thread may. Error: the folder that
  // now has this name is not the locked one, because that was removed, moved, unmounted or taken over; or
  // run.lock was removed. The message says which, and what to do.
  void check_held() const;

 private:
  void lock();

  std::filesystem::path folder_;
  Descriptor opened_, file_;  // the folder, and run.lock in it
  std::string notice_;
};

// The run that is writing to `folder`, as "process 4711 on the host node7, started ..."; "" if none is known.
// Locks and changes nothing.
std::string run_in(const std::filesystem::path& folder);

}  // namespace tessera
