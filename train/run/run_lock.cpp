#include "train/run/run_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLockFile = "run.lock";

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

// "process 4711 on the host node7, started 2026-01-31T12:00:00Z"
std::string holder_of(int fd) {
  std::array<char, 4096> text{};
  const ssize_t count = pread(fd, text.data(), text.size(), 0);
  try {
    const std::string_view read(text.data(), static_cast<size_t>(std::max<ssize_t>(0, count)));
    const nlohmann::json holder = parse_json(read, kLockFile);
    return fmt::format("process {} on the host {}, started {}", whole_number(holder, "pid", kLockFile),
                       text_value(holder, "host", kLockFile), text_value(holder, "started", kLockFile));
  } catch (const Error&) {
    return "a process that has not written its name yet";
  }
}

}  // namespace

std::string run_in(const fs::path& folder) {
  const Descriptor file(open((folder / kLockFile).c_str(), O_RDWR | O_CLOEXEC));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  const bool asked = file.is_open() && fcntl(file.get(), F_OFD_GETLK, &whole) == 0;
  return asked && whole.l_type != F_UNLCK ? holder_of(file.get()) : "";
}

RunLock::RunLock(const fs::path& folder)
    : file_(open((folder / kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  const std::string path = (folder / kLockFile).string();
  check(file_.is_open(),
        "cannot write to the run's folder {}: {}: {}. Choose another with --set train.folder=NAME",
        folder.string(), kLockFile, std::strerror(errno));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  const bool locked = fcntl(file_.get(), F_OFD_SETLK, &whole) == 0;
  const int error = errno;
  check(locked || (error != EAGAIN && error != EACCES),
        "another run is writing to {}: {}. Wait until it ends, stop it, or choose another folder with --set "
        "train.folder=NAME",
        folder.string(), holder_of(file_.get()));
  if (!locked)
    notice_ = fmt::format("{} is on a file system without locks ({}): a second run could write there too",
                          folder.string(), std::strerror(error));
  const std::string text =
      nlohmann::json{{"host", host_name()}, {"pid", getpid()}, {"started", utc_time()}}.dump();
  const bool written = ftruncate(file_.get(), 0) == 0 &&
                       pwrite(file_.get(), text.data(), text.size(), 0) == std::ssize(text) &&
                       fsync(file_.get()) == 0;  // NFS: readers on other hosts see what is on the server
  check(written || errno == ENOSPC || errno == EDQUOT || errno == EFBIG, "cannot write to {}: {}", path,
        std::strerror(errno));  // a full disk is no reason to stop: the lock works without the text
}

}  // namespace tessera
