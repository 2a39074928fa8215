// Framed messages over TCP that never wait, and the sockets they go through.
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

inline constexpr uint64_t kMostMessageBytes = uint64_t{1} << 30;

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_;
};

enum class MessageKind : uint32_t {
  kHello,    // to rank 0: who comes (JSON)
  kWelcome,  // to the others: all are here (JSON)
  kRefusal,  // to the others: the meeting failed (text)
  kPart,     // to rank 0: a rank's bytes of an exchange
  kAll,      // to the others: everyone's
  kState,    // each way, several times within the limit: this process lives (JSON; from rank 0 empty)
  kFailed,   // to rank 0: why this rank fails (text)
  kEnd       // to the others: end; who says why (JSON)
};

struct Message {
  MessageKind kind;
  std::string body;
};

// One end of a connection. Nothing here waits: what does not go at once is kept, until flush() finds room.
class Connection {
 public:
  explicit Connection(FileDescriptor socket);  // connected

  void send(MessageKind kind, std::string_view body);
  void flush();
  void finish_sending();  // after what is kept has gone; the other end then reads the end
  void receive();         // whatever is there
  void limit_messages(uint64_t bytes) {
    most_bytes_ = bytes;
  }  // whoever announces a longer one is a stranger
  std::optional<Message> next();               // of what was received
  bool ended() const { return ended_; }        // by the other side, or broken; messages may still be there
  bool stranger() const { return stranger_; }  // what came is not this protocol; ended() too
  bool unsent() const { return sent_ < out_.size(); }
  pollfd events() const;

 private:
  FileDescriptor socket_;
  std::string in_, out_;
  size_t taken_ = 0, sent_ = 0;  // of in_ and out_, from the front
  uint64_t most_bytes_ = kMostMessageBytes;
  bool ended_ = false, stranger_ = false;
};

enum class Reach { kThisMachine, kNetwork };  // who may connect: through the address alone, or any interface

// Listens at `port` (0: a free one) of the address, which is this machine's. Error: the port is taken, the
// address is not known or another machine's; the message says what to set.
FileDescriptor listen_at(const std::string& address, int port, Reach reach);
int port_of(const FileDescriptor& listening);

// A new connection, or none when nobody waits. It does not wait itself.
std::optional<Connection> accept_from(const FileDescriptor& listening);

// One attempt to connect, of at most `seconds`. A connection, or why there is none.
struct Attempt {
  std::optional<Connection> connection;
  std::string why;
  bool refused = false;  // the machine answers, and nobody listens at the port
};
Attempt connect_to(const std::string& address, int port, double seconds);

}  // namespace tessera
