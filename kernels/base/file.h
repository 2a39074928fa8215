// Files: read through memory maps; written under a temporary name, so that no incomplete file has its final
// name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/base/checksum.h"
#include "kernels/base/descriptor.h"
#include "kernels/base/system_error.h"

namespace tessera {

// A whole regular file, mapped read-only. Only the pages that are touched are read from disk. If another
// program shortens the file while it is mapped, reading the lost part ends this program with SIGBUS: so
// replace a file that is in use by a rename (as OutputFile does), never by truncating it.
class MappedFile {
 public:
  // Error: missing, not readable, not a regular file, a pointer of Git LFS: no file of ours is one.
  explicit MappedFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_.get(), data_.get_deleter().size}; }

 private:
  struct Unmap {
    size_t size;  // bytes
    void operator()(const std::byte* data) const;
  };
  std::filesystem::path path_;
  std::unique_ptr<const std::byte, Unmap> data_{nullptr, Unmap{0}};  // null when the file is empty
};

// Has the system begin to read bytes of a MappedFile that will be touched soon. Does not wait for it.
void read_ahead(std::span<const std::byte> bytes);

// A file that is written under `<path>.tmp`. commit() syncs it and renames it to `path`, replacing an
// existing file; an OutputFile destroyed without commit() removes its temporary file. Every call throws an
// Error that names the file and the system's reason.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);            // appends
  void overwrite_start(std::span<const std::byte> bytes);  // for a header known only at the end
  // Syncs and closes the file, and returns its temporary name: it can be read before commit().
  const std::filesystem::path& finish();
  FileChecksum commit();  // of the complete file

 private:
  void write_here(std::span<const std::byte> bytes);
  void check_written(SystemCall call) const;

  std::filesystem::path path_, temporary_;
  Descriptor file_;
  bool finished_ = false, committed_ = false;
  Checksum checksum_;  // of the bytes given to write()
  int64_t bytes_ = 0;
  bool start_changed_ = false;  // after write()
};

// Writes a whole text file through an OutputFile.
FileChecksum write_file(const std::filesystem::path& path, std::string_view text);

// Reads the whole file. Error: it cannot be read, with the system's reason.
FileChecksum checksum_of_file(const std::filesystem::path& path);

// Makes renames inside `folder` survive a crash. Error: naming the folder and the system's reason.
void sync_folder(const std::filesystem::path& folder);

}  // namespace tessera
