// The owner of a file descriptor: of a file, a socket or one end of a pipe.
#pragma once

#include <unistd.h>

#include <string_view>
#include <utility>

namespace tessera {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}  // below 0: none
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }  // the caller owns it now
  // Closes now. False: what was written may be lost; errno says why.
  bool close() { return fd_ < 0 || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

struct Pipe {
  Descriptor read, write;
};
// Programs that this one starts do not inherit it. Error: it cannot be made; names `what_for` and the
// system's reason.
Pipe make_pipe(std::string_view what_for);

}  // namespace tessera
