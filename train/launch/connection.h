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

// One end of a connection. No call blocks: what cannot be sent at once is kept until flush().
class Connection {
 public:
  explicit Connection(Descriptor socket);  // connected

  void send(MessageKind kind, std::string_view body);
  void flush();
  void finish_sending();          // when all is sent: the other end then reads the end of the stream
  void receive();                 // all that has arrived
  std::optional<Message> next();  // the next whole message that was received
  // A longer message is a protocol error.
  void set_max_message_bytes(uint64_t bytes) { max_bytes_ = bytes; }
  bool ended() const { return ended_; }  // closed by the other end, or broken; next() may still have messages
  bool protocol_error() const { return protocol_error_; }  // the other end is another program; ended() too
  bool unsent() const { return sent_ < out_.size(); }
  pollfd events() const;

 private:
  Descriptor socket_;
  std::string in_, out_;
  size_t taken_ = 0, sent_ = 0;  // bytes of in_ and out_, from the front
  uint64_t max_bytes_ = kMaxMessageBytes;
  bool ended_ = false, protocol_error_ = false;
};

enum class Reach { kThisMachine, kNetwork };  // who may connect: through the address alone, or any interface

// Listens at `port` (0: a free one) of the address, which is this machine's. Error: the port is taken, or the
// address is unknown or another machine's.
Descriptor listen_at(const std::string& address, int port, Reach reach);
int port_of(const Descriptor& listening);

// A new connection, if one waits. Does not block.
std::optional<Connection> accept_from(const Descriptor& listening);

// One attempt to connect, of at most `seconds`: a connection, or why there is none.
struct Attempt {
  std::optional<Connection> connection;
  std::string why;
  bool refused = false;  // the machine answers, but nothing listens at the port
};
Attempt connect_to(const std::string& address, int port, double seconds);

}  // namespace tessera
