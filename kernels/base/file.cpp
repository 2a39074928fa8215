#include "kernels/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/host_limits.h"
#include "kernels/base/lfs_pointer.h"
#include "kernels/base/system_error.h"

namespace tessera {

void MappedFile::Unmap::operator()(const std::byte* data) const {
  munmap(const_cast<std::byte*>(data), size);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer; it is refused below.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info = {};
  const SystemCall looked = file.is_open() && fstat(file.get(), &info) == 0;
  check(looked.worked || looked.error != ENOENT, "{} does not exist", path.string());
  check_system(looked, "cannot read {}: {}", path.string());
  check(S_ISREG(info.st_mode), "{} is not a regular file, so it cannot be mapped into memory", path.string());
  if (info.st_size == 0) return;  // mmap refuses a length of 0
  const size_t size = static_cast<size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  const SystemCall mapped = data != MAP_FAILED;
  check_system(mapped, "cannot map {} into memory{}: {}", path.string(),
               mapped.error == ENOMEM ? limits_text(/*pinned=*/false) : "");
  data_ = decltype(data_)(static_cast<const std::byte*>(data), Unmap{size});
  refuse_lfs_pointer({reinterpret_cast<const char*>(bytes().data()), size}, path_);
}

void read_ahead(std::span<const std::byte> bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data()) / page * page,
             end = reinterpret_cast<uintptr_t>(bytes.data()) + bytes.size();
  // It is a hint: where the system does not take it, the bytes are read when they are touched.
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_WILLNEED);
}

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(path_.string() + ".tmp") {
  file_ = Descriptor(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  check_written(file_.is_open());
}

OutputFile::~OutputFile() {
  if (!committed_) unlink(temporary_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  checksum_.update(bytes);
  bytes_ += std::ssize(bytes);
  write_here(bytes);
}

void OutputFile::write_here(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    check_written(written >= 0);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::overwrite_start(std::span<const std::byte> bytes) {
  check_written(lseek(file_.get(), 0, SEEK_SET) >= 0);
  write_here(bytes);
  start_changed_ = true;
  check_written(lseek(file_.get(), 0, SEEK_END) >= 0);
}

const std::filesystem::path& OutputFile::finish() {
  if (finished_) return temporary_;
  // The content must be on disk before the name is: after a crash the file could otherwise be full of zeros.
  check_written(fsync(file_.get()) == 0);
  check_written(file_.close());
  finished_ = true;
  return temporary_;
}

FileChecksum OutputFile::commit() {
  const FileChecksum written =
      start_changed_ ? checksum_of_file(temporary_) : FileChecksum{bytes_, checksum_.digits()};
  finish();
  check_written(std::rename(temporary_.c_str(), path_.c_str()) == 0);
  committed_ = true;
  sync_folder(path_.has_parent_path() ? path_.parent_path() : ".");
  return written;
}

void OutputFile::check_written(SystemCall call) const {
  check_system(call, "cannot write {}: {}", path_.string());
}

FileChecksum write_file(const std::filesystem::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  return file.commit();
}

// With read(), not a memory map: a sector that cannot be read is then an error, not a SIGBUS.
FileChecksum checksum_of_file(const std::filesystem::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  check_system(file.is_open(), "cannot read {}: {}", path.string());
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  std::vector<std::byte> buffer(size_t{1} << 20);
  Checksum checksum;
  int64_t bytes = 0;
  while (true) {
    const ssize_t count = read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    check_system(count >= 0, "cannot read {}: {}", path.string());
    if (count == 0) return {bytes, checksum.digits()};
    checksum.update(std::span(buffer).first(static_cast<size_t>(count)));
    bytes += count;
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: this file system cannot sync folders; nothing better can be done.
  check_system(opened.is_open() && (fsync(opened.get()) == 0 || errno == EINVAL),
               "cannot write to the folder {}: {}", folder.string());
}

}  // namespace tessera
