#include "train/launch/rendezvous.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <thread>

namespace tessera {
namespace {

constexpr uint64_t kMostHelloBytes = uint64_t{1} << 24;  // configurations are a few KiB
constexpr size_t kMostGuests = 256;                      // connections without a hello

// What a rank says of itself when it comes, behind the secret.
struct Hello {
  int rank, size;
  std::string name, build, config;
};

std::string encode(const Hello& hello) {
  return dump({{"rank", hello.rank},
               {"size", hello.size},
               {"name", hello.name},
               {"build", hello.build},
               {"config", hello.config}});
}

// Whether a message begins with the secret. It takes as long for every wrong one, so that nobody finds the
// secret letter by letter.
bool begins_with_secret(std::string_view body, std::string_view secret) {
  if (body.size() < secret.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < secret.size(); ++i)
    difference |= static_cast<unsigned char>(body[i]) ^ static_cast<unsigned char>(secret[i]);
  return difference == 0;
}

Hello decode(const std::string& body) {
  const Json json = Json::parse(body);
  return {json.at("rank"), json.at("size"), json.at("name"), json.at("build"), json.at("config")};
}

// Where two configurations part: "`train.seed: 5` where rank 0 has `train.seed: 4`".
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

// Rank 0's side: everyone who comes is heard, until all are here, one is refused, or the time is over.
class Reception {
 public:
  Reception(const World& world, const Introduction& introduction, double time_limit)
      : world_(world), introduction_(introduction), time_limit_(time_limit), listening_(listen()) {
    here_.resize(static_cast<size_t>(world.size - 1));
  }

  std::vector<Member> receive_all() {
    while (refusal_.empty() && arrived_ < here_.size()) {
      if (seconds_since(start_) > time_limit_) refusal_ = missing();
      hear();
    }
    if (!refusal_.empty()) refuse();
    std::vector<Member> members;
    for (std::optional<Member>& member : here_) {
      member->connection.send(MessageKind::kWelcome, dump({{"name", name_of_this_process(world_)}}));
      members.push_back(std::move(*member));
    }
    return members;
  }

 private:
  FileDescriptor listen() const {
    if (world_.listening_fd < 0)
      return listen_at(world_.master_address, world_.master_port,
                       world_.local_size == world_.size ? Reach::kThisMachine : Reach::kNetwork);
    FileDescriptor inherited(world_.listening_fd);
    int listens = 0;
    socklen_t size = sizeof listens;
    getsockopt(inherited.get(), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
    check(listens != 0, "{} is {}, which is not a listening socket. Unset it: only the launcher sets it",
          kListenVariable, world_.listening_fd);
    fcntl(inherited.get(), F_SETFD, FD_CLOEXEC);
    return inherited;
  }

  // Waits a moment for what comes, and takes it.
  void hear() {
    std::vector<pollfd> events{{.fd = listening_.get(), .events = POLLIN, .revents = 0}};
    for (const Connection& guest : guests_) events.push_back(guest.events());
    for (const std::optional<Member>& member : here_)
      if (member) events.push_back(member->connection.events());
    poll(events.data(), events.size(), 20);
    accept_all();
    for (Connection& guest : std::exchange(guests_, {})) {
      guest.receive();
      const std::optional<Message> message = guest.next();
      if (message)
        seat(*message, std::move(guest));
      else if (guest.stranger())
        ++strangers_;
      else if (!guest.ended())
        guests_.push_back(std::move(guest));
    }
    for (std::optional<Member>& member : here_) {
      if (!member) continue;
      member->connection.receive();
      if (!member->connection.ended()) continue;
      member.reset();  // it may come again; if not, it is missing
      --arrived_;
    }
  }

  // A rank says hello at once. Of those who don't, the newest stay: a rank that must go comes again.
  void accept_all() {
    while (std::optional<Connection> guest = accept_from(listening_)) {
      guest->limit_messages(kMostHelloBytes);
      guests_.push_back(std::move(*guest));
      if (guests_.size() <= kMostGuests) continue;
      guests_.erase(guests_.begin());
      ++strangers_;
    }
  }

  void seat(const Message& message, Connection guest) {
    Hello hello;
    try {
      check(message.kind == MessageKind::kHello, "no hello");
      check(begins_with_secret(message.body, world_.secret), "not the secret");  // before anything is parsed
      hello = decode(message.body.substr(world_.secret.size()));
    } catch (const std::exception&) {
      ++strangers_;
      return;
    }
    if (refusal_.empty()) refusal_ = objection(hello);
    if (!refusal_.empty()) return guests_.push_back(std::move(guest));  // to be told
    guest.limit_messages(kMostMessageBytes);
    here_[static_cast<size_t>(hello.rank - 1)] = Member{hello.rank, hello.name, std::move(guest)};
    ++arrived_;
  }

  std::string objection(const Hello& hello) const {
    if (hello.size != world_.size)
      return fmt::format(
          "{} belongs to a run of {} ranks, and rank 0 to one of {}. Start all with one launcher, "
          "or give two runs different MASTER_PORTs",
          hello.name, hello.size, world_.size);
    if (hello.rank < 1 || hello.rank >= world_.size)
      return fmt::format(
          "{} came, and the ranks that rank 0 waits for are 1 to {}. Give every process a RANK of "
          "its own below WORLD_SIZE",
          hello.name, world_.size - 1);
    const std::optional<Member>& seated = here_[static_cast<size_t>(hello.rank - 1)];
    if (seated)
      return fmt::format("two processes are rank {}: {} and {}. Give every process a RANK of its own",
                         hello.rank, seated->name, hello.name);
    if (hello.build != introduction_.build)
      return fmt::format(
          "{} is another build of the program: {} where rank 0 is {}. Run the same program on every "
          "machine",
          hello.name, hello.build, introduction_.build);
    if (hello.config != introduction_.config)
      return fmt::format("{} has another configuration: {}. Start all ranks with the same configuration",
                         hello.name, first_difference(hello.config, introduction_.config));
    return {};
  }

  std::string missing() const {
    std::vector<int> ranks;
    for (size_t i = 0; i < here_.size(); ++i)
      if (!here_[i]) ranks.push_back(static_cast<int>(i) + 1);
    std::string text = fmt::format(
        "{} {} did not come to {}:{} within {:g} s. Look at what {} printed, and whether {} can reach that "
        "address",
        ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "), world_.master_address,
        port_of(listening_), time_limit_, ranks.size() == 1 ? "it" : "they",
        ranks.size() == 1 ? "its machine" : "their machines");
    if (strangers_ > 0)
      text +=
          fmt::format(". {} connections to this port came from another program{}", strangers_,
                      world_.secret.empty() ? "" : fmt::format(", or without the same {}", kSecretVariable));
    return text;
  }

  // Tells everyone who is here or still comes within a moment.
  [[noreturn]] void refuse() {
    std::vector<Connection> told;
    const auto tell = [&](Connection connection) {
      connection.send(MessageKind::kRefusal, refusal_);
      connection.finish_sending();
      told.push_back(std::move(connection));
    };
    for (std::optional<Member>& member : here_)
      if (member) tell(std::move(member->connection));
    const auto open = [](const Connection& connection) { return !connection.ended(); };
    const Clock::time_point start = Clock::now();
    do {
      accept_all();
      for (Connection& guest : std::exchange(guests_, {})) tell(std::move(guest));
      // Read to the end: closing with unread bytes would reset the connection and lose the refusal.
      for (Connection& connection : told) connection.receive();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    } while (seconds_since(start) < kFarewellSeconds &&
             (told.size() < here_.size() || std::any_of(told.begin(), told.end(), open)));
    throw Error(refusal_);
  }

  const World& world_;
  const Introduction& introduction_;
  const double time_limit_;
  const Clock::time_point start_ = Clock::now();
  FileDescriptor listening_;
  std::vector<Connection> guests_;           // who has not said hello yet
  std::vector<std::optional<Member>> here_;  // rank r at r - 1
  size_t arrived_ = 0;
  int strangers_ = 0;
  std::string refusal_;
};

// Another rank's side: connects until it is welcome, refused, or the time is over.
Member find_rank_0(const World& world, const Introduction& introduction, double time_limit) {
  const Clock::time_point start = Clock::now();
  const auto left = [&] { return time_limit + 2 - seconds_since(start); };  // rank 0 then speaks first
  const std::string hello = world.secret + encode({.rank = world.rank,
                                                   .size = world.size,
                                                   .name = name_of_this_process(world),
                                                   .build = introduction.build,
                                                   .config = introduction.config});
  std::string why = "it did not answer";
  while (left() > 0) {
    Attempt attempt = connect_to(world.master_address, world.master_port, left());
    // Our launcher's socket listens before any rank starts: nobody listens only after rank 0 has ended.
    if (attempt.refused && world.own_launcher()) throw EndedWithOthers("rank 0 has ended");
    if (!attempt.connection) {
      why = attempt.why;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    Connection connection = std::move(*attempt.connection);
    connection.send(MessageKind::kHello, hello);
    while (left() > 0 && !connection.ended()) {
      pollfd events = connection.events();
      poll(&events, 1, 20);
      connection.flush();
      connection.receive();
      const std::optional<Message> message = connection.next();
      if (!message) continue;
      if (message->kind == MessageKind::kRefusal) throw EndedWithOthers(message->body);
      if (message->kind != MessageKind::kWelcome) break;
      return {.rank = 0, .name = Json::parse(message->body).at("name"), .connection = std::move(connection)};
    }
    why = connection.stranger() ? "another program answers there" : "it did not answer as a rank 0 does";
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  fail(
      "rank {} did not meet rank 0 at {}:{} within {:g} s: {}. Look at what rank 0 printed, whether this "
      "machine reaches that address, and whether MASTER_ADDR and MASTER_PORT{} are right",
      world.rank, world.master_address, world.master_port, time_limit, why,
      world.secret.empty() ? "" : fmt::format(" and {}", kSecretVariable));
}

}  // namespace

std::string name_of_this_process(const World& world) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  return fmt::format("rank {} (pid {} on {})", world.rank, getpid(), host);
}

std::vector<Member> meet(const World& world, const Introduction& introduction, double time_limit_seconds) {
  std::vector<Member> members;
  if (world.size == 1) return members;
  if (world.rank == 0) return Reception(world, introduction, time_limit_seconds).receive_all();
  members.push_back(find_rank_0(world, introduction, time_limit_seconds));
  return members;
}

}  // namespace tessera
