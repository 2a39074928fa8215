#include "train/launch/rendezvous.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "kernels/base/present.h"
#include "train/launch/peer_failed.h"

namespace tessera {
namespace {

constexpr size_t kMaxPending = 256;  // connections without a hello

// Whether a message begins with the secret. Every wrong one takes the same time, so that nobody finds the
// secret letter by letter.
bool begins_with_secret(std::string_view body, std::string_view secret) {
  if (body.size() < secret.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < secret.size(); ++i)
    difference |= static_cast<unsigned char>(body[i]) ^ static_cast<unsigned char>(secret[i]);
  return difference == 0;
}

// Where two configurations differ: "`train.seed: 5` where rank 0 has `train.seed: 4`".
std::string first_difference(const std::string& theirs, const std::string& ours) {
  std::istringstream a(theirs), b(ours);
  std::string line, other;
  do {
    line = other = "nothing";
    const bool more = static_cast<bool>(std::getline(a, line)),
               others = static_cast<bool>(std::getline(b, other));
    if (!more) line = "nothing";
    if (!others) other = "nothing";
    if (!more && !others) break;
  } while (line == other);
  return fmt::format("`{}` where rank 0 has `{}`", line, other);
}

// Rank 0's side: reads every hello, until all ranks have joined, one is refused, or the time is over.
class RendezvousServer {
 public:
  RendezvousServer(const World& world, const RunIdentity& run, double time_limit)
      : world_(world), run_(run), time_limit_(time_limit), listening_(listen()) {
    joined_.resize(static_cast<size_t>(world.size - 1));
  }

  std::vector<Peer> accept_all_ranks() {
    while (refusal_.empty() && count_ < joined_.size()) {
      if (seconds_since(start_) > time_limit_) refusal_ = missing_ranks();
      poll_connections();
    }
    if (!refusal_.empty()) refuse();
    std::vector<Peer> peers;
    for (std::optional<Peer>& peer : joined_) {
      present(peer).connection.send(MessageKind::kWelcome,
                                    encode(Welcome{.name = name_of_this_process(world_)}));
      peers.push_back(std::move(present(peer)));
    }
    return peers;
  }

 private:
  Descriptor listen() const {
    if (world_.listening_fd < 0)
      return listen_at(world_.master_address, world_.master_port,
                       world_.local_size == world_.size ? Reach::kThisMachine : Reach::kNetwork);
    Descriptor inherited(world_.listening_fd);
    int listens = 0;
    socklen_t size = sizeof listens;
    getsockopt(inherited.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
    check(listens != 0,
          "{} is {}, which is not a listening socket. Only the launcher sets it: run `unset {}`",
          kListenVariable, world_.listening_fd, kListenVariable);
    fcntl(inherited.get(), F_SETFD, FD_CLOEXEC);
    return inherited;
  }

  // Waits a moment for what arrives, and handles it.
  void poll_connections() {
    std::vector<pollfd> events{{.fd = listening_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& connection : pending_) events.push_back(connection.events());
    for (const std::optional<Peer>& peer : joined_)
      if (peer) events.push_back(peer->connection.events());
    poll(events.data(), events.size(), 20);
    accept_connections();
    for (Connection& connection : std::exchange(pending_, {})) {
      connection.receive();
      const std::optional<Message> message = connection.next();
      if (message)
        admit(*message, std::move(connection));
      else if (connection.protocol_error())
        ++ignored_;
      else if (!connection.ended())
        pending_.push_back(std::move(connection));
    }
    for (std::optional<Peer>& peer : joined_) {
      if (!peer) continue;
      peer->connection.receive();
      if (!peer->connection.ended()) continue;
      peer.reset();  // it may join again; if not, it is missing
      --count_;
    }
  }

  // A rank sends its hello at once. Of the connections without one the newest stay: a rank that was dropped
  // connects again.
  void accept_connections() {
    while (std::optional<Connection> connection = accept_from(listening_)) {
      connection->set_max_message_bytes(kMaxJsonBytes);
      pending_.push_back(std::move(*connection));
      if (pending_.size() <= kMaxPending) continue;
      pending_.erase(pending_.begin());
      ++ignored_;
    }
  }

  void admit(const Message& message, Connection connection) {
    Hello hello;
    try {
      check(message.kind == MessageKind::kHello, "not a hello");
      check(begins_with_secret(message.body, world_.secret), "not the secret");  // before anything is parsed
      hello = decode_hello(std::string_view(message.body).substr(world_.secret.size()));
    } catch (const std::exception&) {
      ++ignored_;
      return;
    }
    if (refusal_.empty()) refusal_ = reason_to_refuse(hello);
    if (!refusal_.empty()) return pending_.push_back(std::move(connection));  // it is sent the refusal
    connection.set_max_message_bytes(kMaxMessageBytes);
    joined_[static_cast<size_t>(hello.rank - 1)] = Peer{hello.rank, hello.name, std::move(connection)};
    ++count_;
  }

  std::string reason_to_refuse(const Hello& hello) const {
    if (hello.size != world_.size)
      return fmt::format(
          "{} belongs to a run of {} ranks, but rank 0 to a run of {}. Start all ranks with one launcher, or "
          "give each run its own MASTER_PORT",
          hello.name, hello.size, world_.size);
    if (hello.rank < 1 || hello.rank >= world_.size)
      return fmt::format(
          "{} joined, but rank 0 waits for ranks 1 to {}. Give every process its own RANK below WORLD_SIZE",
          hello.name, world_.size - 1);
    const std::optional<Peer>& first = joined_[static_cast<size_t>(hello.rank - 1)];
    if (first)
      return fmt::format("two processes are rank {}: {} and {}. Give every process its own RANK", hello.rank,
                         first->name, hello.name);
    if (hello.run.build != run_.build)
      return fmt::format(
          "{} is another build of the program: {} where rank 0 is {}. Run the same program on every machine",
          hello.name, hello.run.build, run_.build);
    if (hello.run.config != run_.config)
      return fmt::format("{} has another configuration: {}. Start all ranks with the same configuration",
                         hello.name, first_difference(hello.run.config, run_.config));
    return {};
  }

  std::string missing_ranks() const {
    std::vector<int> ranks;
    for (size_t i = 0; i < joined_.size(); ++i)
      if (!joined_[i]) ranks.push_back(static_cast<int>(i) + 1);
    const bool one = ranks.size() == 1;
    std::string text = fmt::format(
        "{} {} did not join at {}:{} within {:g} s. See the output of {}, and whether {} can reach that "
        "address",
        one ? "rank" : "ranks", fmt::join(ranks, ", "), world_.master_address, port_of(listening_),
        time_limit_, one ? "that rank" : "those ranks", one ? "its machine" : "their machines");
    if (ignored_ > 0)
      text += fmt::format(". {} connections to this port were ignored: they came from another program{}",
                          ignored_,
                          world_.secret.empty() ? "" : fmt::format(", or with another {}", kSecretVariable));
    return text;
  }

  // Sends the refusal to all ranks that have joined, or still connect within a moment.
  [[noreturn]] void refuse() {
    std::vector<Connection> notified;
    const auto notify = [&](Connection connection) {
      connection.send(MessageKind::kRefusal, refusal_);
      connection.finish_sending();
      notified.push_back(std::move(connection));
    };
    for (std::optional<Peer>& peer : joined_)
      if (peer) notify(std::move(peer->connection));
    const auto open = [](const Connection& connection) { return !connection.ended(); };
    const Clock::time_point start = Clock::now();
    do {
      accept_connections();
      for (Connection& connection : std::exchange(pending_, {})) notify(std::move(connection));
      // Read to the end: closing with unread bytes would reset the connection and lose the refusal.
      for (Connection& connection : notified) connection.receive();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (seconds_since(start) < kDrainSeconds &&
             (notified.size() < joined_.size() || std::any_of(notified.begin(), notified.end(), open)));
    throw Error(refusal_);
  }

  const World& world_;
  const RunIdentity& run_;
  const double time_limit_;
  const Clock::time_point start_ = Clock::now();
  Descriptor listening_;
  std::vector<Connection> pending_;          // no hello yet
  std::vector<std::optional<Peer>> joined_;  // rank r at r - 1
  size_t count_ = 0;                         // of joined_
  int ignored_ = 0;                          // connections that were no rank's
  std::string refusal_;
};

// Sends the hello and waits for the answer until `left()` is over. None, and `why`: it was not rank 0's.
template <class Left>
std::optional<Peer> join_over(Connection connection, const std::string& hello, const Left& left,
                              std::string& why) {
  why = "the program there did not answer as rank 0";
  connection.send(MessageKind::kHello, hello);
  while (left() > 0 && !connection.ended()) {
    pollfd events = connection.events();
    poll(&events, 1, 20);
    connection.flush();
    connection.receive();
    const std::optional<Message> message = connection.next();
    if (!message) continue;
    if (message->kind == MessageKind::kRefusal) throw PeerFailed(message->body);
    if (message->kind != MessageKind::kWelcome) return {};
    try {
      const Welcome welcome = decode_welcome(message->body);
      return Peer{.rank = 0, .name = welcome.name, .connection = std::move(connection)};
    } catch (const Error&) {
      return {};
    }
  }
  if (connection.protocol_error()) why = "another program answered";
  return {};
}

// Another rank's side: connects until rank 0 accepts or refuses it, or the time is over.
Peer connect_to_rank_0(const World& world, const RunIdentity& run, double time_limit) {
  const Clock::time_point start = Clock::now();
  const auto left = [&] { return time_limit + 2 - seconds_since(start); };  // rank 0 reports first
  const std::string hello =
      world.secret +
      encode(Hello{.rank = world.rank, .size = world.size, .name = name_of_this_process(world), .run = run});
  std::string why = "no answer";
  while (left() > 0) {
    Attempt attempt = connect_to(world.master_address, world.master_port, left());
    // Our launcher's socket listens before any rank starts: nobody listens only after rank 0 has ended.
    if (attempt.refused && world.own_launcher()) throw PeerFailed("rank 0 has ended");
    if (!attempt.connection) {
      why = attempt.why;
    } else if (std::optional<Peer> peer = join_over(std::move(*attempt.connection), hello, left, why)) {
      return std::move(*peer);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  fail(
      "rank {} could not join rank 0 at {}:{} within {:g} s: {}. See the output of rank 0, whether this "
      "machine can reach that address, and whether MASTER_ADDR and MASTER_PORT{} are right",
      world.rank, world.master_address, world.master_port, time_limit, why,
      world.secret.empty() ? "" : fmt::format(" and {}", kSecretVariable));
}

}  // namespace

std::string name_of_this_process(const World& world) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return fmt::format("rank {} (pid {} on {})", world.rank, getpid(), host);
}

std::vector<Peer> rendezvous(const World& world, const RunIdentity& run, double time_limit_seconds) {
  std::vector<Peer> peers;
  if (world.size == 1) return peers;
  if (world.rank == 0) return RendezvousServer(world, run, time_limit_seconds).accept_all_ranks();
  peers.push_back(connect_to_rank_0(world, run, time_limit_seconds));
  return peers;
}

}  // namespace tessera
