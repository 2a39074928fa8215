#include "train/run/run_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/json_text.h"
#include "kernels/base/system_error.h"
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

bool is_file(int fd, const fs::path& path) {
  struct stat opened = {}, named = {};
  return fstat(fd, &opened) == 0 && stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

struct Loss {
  std::string what, advice;
};

// Where an opened folder is now; "" if nowhere, or out of sight
std::string place_of(int folder) {
  std::error_code error;
  const fs::path path = fs::read_symlink(fmt::format("/proc/self/fd/{}", folder), error);
  return !error && is_file(folder, path) ? path.string() : "";
}

Loss loss_of_folder(int held, const fs::path& folder) {
  constexpr const char* kElsewhere =
      "What it wrote is gone, unless there is a copy. Start it again in a folder of its own: --set "
      "train.folder=NAME";
  struct stat was = {}, found = {};
  const bool removed = fstat(held, &was) != 0 || was.st_nlink == 0;  // NFS: a stale handle
  const bool is_there = stat(folder.c_str(), &found) == 0;
  const std::string place = removed ? "" : place_of(held), run = run_in(folder);
  if (!place.empty())
    return {fmt::format("it was moved to {}{}", place, is_there ? ", and another one is in its place" : ""),
            fmt::format("Go on there from the newest checkpoint: ./train {} --resume", place)};
  if (!removed)
    return {"its file system is not mounted there any more",
            "Mount it again, and go on from the newest checkpoint with --resume"};
  if (!is_there)
    return {"it was removed",
            "Its checkpoints are gone with it, unless there is a copy. Start the run again"};
  return {run.empty() ? "it was removed, and another one was made in its place"
                      : fmt::format("it was removed, and another run has taken its place: {}", run),
          kElsewhere};
}

Loss loss_of_file(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kLockFile, error))
    return {fmt::format("its {} was removed, without which another run could take the folder", kLockFile),
            "Go on from the newest checkpoint with --resume"};
  const std::string run = run_in(folder);
  if (run.empty())
    return {fmt::format("its {} was replaced", kLockFile), "Go on from the newest checkpoint with --resume"};
  return {fmt::format("its {} was replaced, and another run has taken the folder: {}", kLockFile, run),
          "Stop one of them, or choose another folder with --set train.folder=NAME"};
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

RunLock::RunLock(const fs::path& folder, Hold hold)
    : folder_(folder),
      opened_(open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)),
      file_(open((folder / kLockFile).c_str(),
                 hold == Hold::kLock ? O_RDWR | O_CREAT | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666)) {
  const SystemCall opened = file_.is_open();
  if (hold == Hold::kWatch)
    check_system(opened,
                 "cannot read {} in the run's folder {}, which rank 0 has locked: {}. train.folder has to be "
                 "the same folder for all ranks",
                 kLockFile, folder.string());
  check_system(opened,
               "cannot write to the run's folder {}: {}: {}. Choose another with --set train.folder=NAME",
               folder.string(), kLockFile);
  if (hold == Hold::kLock) lock();
  check_held();  // it may have been removed since it was opened
}

void RunLock::lock() {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  const SystemCall locked = fcntl(file_.get(), F_OFD_SETLK, &whole) == 0;
  check(locked.worked || (locked.error != EAGAIN && locked.error != EACCES),
        "another run is writing to {}: {}. Wait until it ends, stop it, or choose another folder with --set "
        "train.folder=NAME",
        folder_.string(), holder_of(file_.get()));
  if (!locked.worked)
    notice_ = fmt::format("{} is on a file system without locks ({}): a second run could write there too",
                          folder_.string(), system_reason(locked.error));
  const std::string text =
      nlohmann::json{{"host", host_name()}, {"pid", getpid()}, {"started", utc_time()}}.dump();
  const SystemCall written =
      ftruncate(file_.get(), 0) == 0 &&
      pwrite(file_.get(), text.data(), text.size(), 0) == std::ssize(text) &&
      fsync(file_.get()) == 0;  // NFS: readers on other hosts see what is on the server
  const bool full = written.error == ENOSPC || written.error == EDQUOT || written.error == EFBIG;
  if (!full)  // a full disk is no reason to stop: the lock works without the text
    check_system(written, "cannot write to {}: {}", (folder_ / kLockFile).string());
}

void RunLock::check_held() const {
  if (is_file(file_.get(), folder_ / kLockFile)) return;
  const Loss loss =
      is_file(opened_.get(), folder_) ? loss_of_file(folder_) : loss_of_folder(opened_.get(), folder_);
  fail(
      "the run's folder {} is not this run's any more: {}. The run stops, and writes and removes nothing "
      "there. {}",
      folder_.string(), loss.what, loss.advice);
}

}  // namespace tessera
