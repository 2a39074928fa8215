// Framed messages over TCP that never block, and the sockets that carry them.
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/base/descriptor.h"

namespace tessera {

inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 30;

enum class MessageKind : uint32_t {
  kHello,         // to rank 0: a rank joins (the secret, then JSON)
  kWelcome,       // from rank 0: all ranks have joined (JSON)
  kRefusal,       // from rank 0: the rendezvous failed (text)
  kContribution,  // to rank 0: a rank's bytes of an exchange
  kGathered,      // from rank 0: the bytes of all ranks
  kHeartbeat,     // both ways, several times within the time limit (JSON; from rank 0 empty)
  kFailure,       // to rank 0: why this rank fails (text)
  kShutdown       // from rank 0: the run ends (JSON)
};

struct Message {
  MessageKind kind;
  std::string body;
};

// One end of a connection. No call blocks: data that cannot be sent at once waits until flush().
class Connection {
 public:
  explicit Connection(Descriptor socket);  // connected

  void send(MessageKind kind, std::string_view body);
  void flush();
  void finish_sending();          // call it when all is sent: the other end then reads the end of the stream
  void receive();                 // receives all that has arrived
  std::optional<Message> next();  // the next whole message; nothing if there is none
  // A longer message is a protocol error.
  void set_max_message_bytes(uint64_t bytes) { max_bytes_ = bytes; }
  bool ended() const { return ended_; }  // closed by the other end, or broken; next() may still have messages
  bool protocol_error() const {
    return protocol_error_;
  }  // the other end is another program; then ended()
     // is true, too
  bool unsent() const { return sent_ < out_.size(); }
  pollfd events() const;

 private:
  Descriptor socket_;
  std::string in_, out_;
  size_t taken_ = 0, sent_ = 0;  // bytes at the front of in_ and out_ that are done with
  uint64_t max_bytes_ = kMaxMessageBytes;
  bool ended_ = false, protocol_error_ = false;
};

enum class Reach {
  kThisMachine,
  kNetwork
};  // who may connect: only programs that use this address, or any
    // interface

// Listens at `port` (0: a free one) of an address of this machine. Error: the port is taken; the address is
// unknown or belongs to another machine.
Descriptor listen_at(const std::string& address, int port, Reach reach);
int port_of(const Descriptor& listening);

// A new connection, if one is waiting. Does not block.
std::optional<Connection> accept_from(const Descriptor& listening);

// Tries once to connect, for at most `seconds`. The result is a connection, or why there is none.
struct Attempt {
  std::optional<Connection> connection;
  std::string why;
  bool refused = false;  // the machine answers, but no program listens at the port
};
Attempt connect_to(const std::string& address, int port, double seconds);

}  // namespace tessera
