#include "train/launch/connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "kernels/base/check.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

constexpr uint32_t kMagic = 0x41535354;  // "TSSA": begins every message of this protocol

struct Header {
  uint32_t magic, kind;
  uint64_t bytes;
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

// Null, and `why`, if the name cannot be resolved.
Addresses resolve(const std::string& address, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int result = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (result != 0)
    why = fmt::format("the host name {} cannot be resolved ({})", address, gai_strerror(result));
  return Addresses(list);
}

void set_any(sockaddr& address) {
  if (address.sa_family == AF_INET)
    reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_ANY);
  else
    reinterpret_cast<sockaddr_in6&>(address).sin6_addr = in6addr_any;
}

}  // namespace

Connection::Connection(Descriptor socket) : socket_(std::move(socket)) {
  fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  const int yes = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void Connection::send(MessageKind kind, std::string_view body) {
  check(body.size() <= kMaxMessageBytes,
        "cannot send a message of {} bytes to another rank; at most {} bytes fit into one", body.size(),
        kMaxMessageBytes);
  const Header header{.magic = kMagic, .kind = static_cast<uint32_t>(kind), .bytes = body.size()};
  out_.append(reinterpret_cast<const char*>(&header), sizeof header).append(body);
  flush();
}

void Connection::flush() {
  while (unsent() && !ended_) {
    const ssize_t count = ::send(socket_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
    if (count >= 0)
      sent_ += static_cast<size_t>(count);
    else if (errno == EAGAIN)
      return;
    else if (errno != EINTR)
      break;  // broken: what the other end sent before can still be read, then the end of the stream
  }
  out_.clear();
  sent_ = 0;
}

void Connection::finish_sending() {
  if (!unsent()) shutdown(socket_.get(), SHUT_WR);
}

void Connection::receive() {
  in_.erase(0, std::exchange(taken_, 0));
  char buffer[1 << 16];
  while (!ended_) {
    const ssize_t count = recv(socket_.get(), buffer, sizeof buffer, 0);
    if (count > 0)
      in_.append(buffer, static_cast<size_t>(count));
    else if (count < 0 && errno == EAGAIN)
      return;
    else if (count == 0 || errno != EINTR)
      ended_ = true;
  }
}

std::optional<Message> Connection::next() {
  const std::string_view rest = std::string_view(in_).substr(taken_);
  Header header{.magic = kMagic, .kind = 0, .bytes = 0};
  std::memcpy(&header, rest.data(), std::min(rest.size(), sizeof header));
  if (header.magic != kMagic || header.bytes > max_bytes_) ended_ = protocol_error_ = true;
  if (protocol_error_ || rest.size() < sizeof header || rest.size() - sizeof header < header.bytes) return {};
  taken_ += sizeof header + header.bytes;
  return Message{static_cast<MessageKind>(header.kind),
                 std::string(rest.substr(sizeof header, header.bytes))};
}

pollfd Connection::events() const {
  return {.fd = ended_ ? -1 : socket_.get(),
          .events = static_cast<short>(unsent() ? POLLIN | POLLOUT : POLLIN),
          .revents = 0};
}

Descriptor listen_at(const std::string& address, int port, Reach reach) {
  std::string why;
  const Addresses addresses = resolve(address, port, why);
  check(addresses != nullptr,
        "rank 0 cannot listen at {}:{}: {}. Set MASTER_ADDR to the name of rank 0's machine", address, port,
        why);
  if (reach == Reach::kNetwork) set_any(*addresses->ai_addr);
  Descriptor fd(socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes,
             sizeof yes);  // a run that has just ended does not hold the port
  if (bind(fd.get(), addresses->ai_addr, addresses->ai_addrlen) == 0 && listen(fd.get(), SOMAXCONN) == 0)
    return fd;
  const int error = errno;
  const char* advice = error == EADDRINUSE
                           ? "Another program, perhaps another run, uses the port. Stop it or set another "
                             "MASTER_PORT"
                           : "MASTER_ADDR must be rank 0's machine, and MASTER_PORT a port that "
                             "programs may use";
  fail("rank 0 cannot listen at {}:{}: {}. {}", address, port, system_reason(error), advice);
}

int port_of(const Descriptor& listening) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(listening.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(address).sin_port
                                            : reinterpret_cast<sockaddr_in6&>(address).sin6_port);
}

std::optional<Connection> accept_from(const Descriptor& listening) {
  Descriptor fd(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd.get() < 0) return {};
  return Connection(std::move(fd));
}

Attempt connect_to(const std::string& address, int port, double seconds) {
  Attempt attempt;
  const Addresses addresses = resolve(address, port, attempt.why);
  for (const addrinfo* at = addresses.get(); at; at = at->ai_next) {
    Descriptor fd(socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd writable{.fd = fd.get(), .events = POLLOUT, .revents = 0};
      socklen_t size = sizeof error;
      if (poll(&writable, 1, static_cast<int>(seconds * 1000)) <= 0)
        error = ETIMEDOUT;
      else
        getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) return {.connection = Connection(std::move(fd)), .why = {}, .refused = false};
    attempt.why = system_reason(error);
    attempt.refused = error == ECONNREFUSED;
  }
  return attempt;
}

}  // namespace tessera
