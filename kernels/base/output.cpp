#include "kernels/base/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "kernels/base/check.h"
#include "kernels/base/descriptor.h"
#include "kernels/base/file.h"
#include "kernels/base/status_line.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// A link is not followed here: /dev/stdout is a link, possibly to a regular file.
bool is_replaced(const std::string& path) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  return type == fs::file_type::regular || type == fs::file_type::not_found || type == fs::file_type::none;
}

// The descriptor of this process's stdout or stderr, if `path` names it: opening that file again would
// overwrite the printed text.
int standard_stream(const std::string& path) {
  struct stat opened = {}, stream = {};
  if (stat(path.c_str(), &opened) != 0) return -1;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
    if (fstat(fd, &stream) == 0 && stream.st_dev == opened.st_dev && stream.st_ino == opened.st_ino)
      return fd;
  return -1;
}

void check_written(SystemCall call, const std::string& path) {
  check_system(call, "cannot write {}: {}", path);
}

void write_in_place(const std::string& path, std::string_view text) {
  const int standard = standard_stream(path);
  if (standard >= 0) {
    std::fflush(nullptr);
    return check_written(write_all(standard, text), path);
  }
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  check_written(file.is_open() && write_all(file.get(), text) && file.close(), path);
}

}  // namespace

void check_writable(const std::string& path) {
  if (path.empty()) return;
  std::error_code error;
  check(!fs::is_directory(path, error), "cannot write {}: it is a folder; name a file in it", path);
  if (is_replaced(path)) {
    OutputFile probe(path);
  } else if (fs::exists(path, error)) {  // A pipe is not opened: its reader would see the end of the input.
    check_written(access(path.c_str(), W_OK) == 0, path);
  }
}

void write_output(const std::string& path, std::string_view text) {
  if (path.empty()) return;
  if (is_replaced(path)) {
    write_file(path, text);
  } else {
    write_in_place(path, text);
  }
}

}  // namespace tessera
