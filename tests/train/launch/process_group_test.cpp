// Ranks as real processes: the rendezvous succeeds or is refused, ranks exchange bytes, and all end together
// whatever happens to one of them.
#include "train/launch/process_group.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/train/launch/rank_scripts.h"

namespace tessera::testing {
namespace {

// An error is found after the time limit of 1 s at the latest, and reported within a few.
#ifdef __SANITIZE_THREAD__
constexpr double kSoon = 24;  // the sanitizer makes everything slower
#else
constexpr double kSoon = 6;
#endif

struct Rendezvous : RankScripts {
  // Rank 0 reports it; the others are sent the same text and end silently.
  void expect_refusal(std::initializer_list<std::string_view> parts, std::initializer_list<size_t> others) {
    expect_ending(0, parts, others);
    for (const size_t rank : others)
      for (const std::string_view part : parts) expect_in(part, result(rank).out);
    EXPECT_LT(seconds(), kSoon);
  }
};

TEST_F(Rendezvous, ExchangesBytesInTheOrderOfRanks) {
  const Words script = {"join", "exchange:0", "exchange:3000000", "sum", "exchange:7", "phase:a",
                        "sum",  "finish"};
  for (int size = 1; size <= 4; ++size) {
    const size_t first = static_cast<size_t>(size * (size - 1) / 2);
    start_all(size, script);
    for (size_t rank = first; rank < first + static_cast<size_t>(size); ++rank)
      EXPECT_EQ(result(rank).status, 0) << size << " ranks: " << result(rank).error;
  }
}

TEST_F(Rendezvous, WaitsForALateRank) {
  start(1, 2, {"limit:5", "join", "exchange:10", "finish"});
  start(0, 2, {"limit:5", "sleep:0.5", "join", "exchange:10", "finish"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

TEST_F(Rendezvous, NamesMissingRanks) {
  start(0, 4, {"limit:1", "join"});
  start(1, 4, {"limit:1", "join"});
  expect_refusal({"ranks 2, 3", std::to_string(port), "1 s"}, {1});
}

TEST_F(Rendezvous, RefusesARankThatJoinsTwice) {
  start(0, 3, {"join"});
  start(1, 3, {"join"});
  start(1, 3, {"join"});
  expect_refusal({"two processes", "rank 1", "its own RANK"}, {1, 2});
}

TEST_F(Rendezvous, RefusesAnotherWorldSize) {
  start(0, 2, {"join"});
  start(1, 3, {"join"});
  expect_refusal({"rank 1 (pid ", "3 ranks", "a run of 2"}, {1});
}

TEST_F(Rendezvous, RefusesAnotherBuild) {
  start_all(3, {"2@build:build 2", "join"});
  expect_refusal({"rank 2 (pid ", "another build", "build 2", "build 1"}, {1, 2});
}

TEST_F(Rendezvous, RefusesAnotherConfigurationByItsFirstLine) {
  start_all(3, {"1@config:a: 1\nb: 3\nc: 4\n", "join"});
  expect_refusal({"rank 1 (pid ", "`b: 3` where rank 0 has `b: 2`", "the same configuration"}, {1, 2});
}

TEST_F(Rendezvous, RefusesAConfigurationThatIsLonger) {
  start_all(2, {"1@config:a: 1\nb: 2\nc: 4\n", "join"});
  expect_refusal({"`c: 4` where rank 0 has `nothing`"}, {1});
}

TEST_F(Rendezvous, APortThatIsTakenEndsAll) {
  const Descriptor other = listen_at("127.0.0.1", port, Reach::kThisMachine);
  start_all(2, {"limit:1", "join"});
  expect_error(0, {"cannot listen at 127.0.0.1:" + std::to_string(port), "in use", "another MASTER_PORT"});
  expect_error(1, {"rank 1", "rank 0", std::to_string(port), "as rank 0"});
  EXPECT_LT(seconds(), kSoon);
}

TEST_F(Rendezvous, AMasterThatCannotBeReachedIsAnError) {
  start(1, 2, {"limit:1", "join"});
  start(1, 2, {"limit:1", "join"}, {"MASTER_ADDR=no-such-host.invalid"});
  expect_error(0, {"rank 1", "rank 0 at 127.0.0.1:" + std::to_string(port), "1 s", "refused"});
  expect_error(1, {"no-such-host.invalid", "resolved", "MASTER_ADDR"});
}

TEST_F(Rendezvous, AnotherMachinesAddressCannotBeListenedAt) {
  start(0, 2, {"join"}, {"MASTER_ADDR=192.0.2.1"});  // kept for documents: nobody has it
  expect_error(0, {"rank 0", "listen at 192.0.2.1", "MASTER_ADDR"});
}

TEST_F(Rendezvous, ASocketThatIsNoneIsAnError) {
  start(0, 2, {"join"}, {std::string(kLauncherVariable) + "=1", std::string(kListenVariable) + "=99"});
  expect_error(0, {kListenVariable, "is 99"});
}

TEST_F(Rendezvous, IgnoresOtherPrograms) {
  start(0, 2, {"limit:5", "join", "exchange:100", "finish"});
  std::vector<Descriptor> others;
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "", "TS", "SSH-2.0-x\r\n"}) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    others.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
    ASSERT_TRUE(wait_until([&] {
      return connect(others.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    }));
    ASSERT_EQ(::write(others.back().get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  start(1, 2, {"limit:5", "join", "exchange:100", "finish"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

// Connections without the secret: unchecked, each would end the rendezvous or join it.
TEST_F(Rendezvous, IgnoresConnectionsWithoutTheSecret) {
  const Words secret = {"TESSERA_SECRET=0123456789abcdef"},
              script = {"limit:5", "join", "exchange:100", "finish"};
  start(0, 2, script, secret);
  std::vector<Connection> others;
  for (const std::string& text : {hello(1, 2), hello(1, 3), hello(7, 2), "0123456789abcdeF" + hello(1, 2),
                                  std::string("0123456789abcde"), std::string(100000, '[')}) {
    others.push_back(connect_raw(port));
    others.back().send(MessageKind::kHello, text);
  }
  for (Connection& each : others) EXPECT_TRUE(is_dropped(each));  // before the rank joins
  start(1, 2, script, secret);
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

// With no secret to stop them before their JSON is parsed.
TEST_F(Rendezvous, IgnoresHelloMessagesThatAreNot) {
  const Words script = {"limit:5", "join", "exchange:100", "finish"};
  start(0, 2, script);
  std::vector<Connection> others;
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string("{\"rank\":\"1\"}"), std::string(1 << 20, '['),
        std::string(1 << 20, '[') + std::string(1 << 20, ']'), std::string("\xff"), std::string(9, '\0')}) {
    others.push_back(connect_raw(port));
    others.back().send(MessageKind::kHello, text);
  }
  others.push_back(connect_raw(port));
  others.back().send(MessageKind::kHeartbeat, hello(1, 2));
  others.push_back(connect_raw(port));
  others.back().send(static_cast<MessageKind>(99), hello(1, 2));
  for (Connection& each : others) EXPECT_TRUE(is_dropped(each));  // before the rank joins
  start(1, 2, script);
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

// As a rank meets another program at rank 0's port.
TEST_F(Rendezvous, ARankIgnoresAWelcomeThatIsNot) {
  Descriptor listening = listen_at("127.0.0.1", port, Reach::kThisMachine);
  start(1, 2, {"limit:1", "join"});
  for (const std::string& text : {std::string("{}"), std::string(1 << 20, '['), std::string("\xff")}) {
    std::optional<Connection> connection;
    ASSERT_TRUE(wait_until([&] { return (connection = accept_from(listening)).has_value(); }));
    connection->send(MessageKind::kWelcome, text);
    EXPECT_TRUE(is_dropped(*connection));
  }
  listening.close();
  expect_error(0, {"rank 1", "rank 0", "MASTER_ADDR and MASTER_PORT"});
}

TEST_F(Rendezvous, ARankWithAnotherSecretDoesNotJoin) {
  start(0, 2, {"limit:1", "join"}, {"TESSERA_SECRET=0123456789abcdef"});
  start(1, 2, {"limit:1", "join"}, {"TESSERA_SECRET=0123456789abcdeF"});
  expect_refusal({"rank 1", "join", "with another TESSERA_SECRET"}, {1});
}

TEST_F(Rendezvous, ItsMemoryAndItsDescriptorsAreBounded) {
  start(0, 2, {"limit:10", "join", "finish"});
  std::vector<Connection> others;
  for (int i = 0; i < 400; ++i) others.push_back(connect_raw(port));
  Connection large = connect_raw(port);
  large.send(MessageKind::kHello, std::string(size_t{17} << 20, 'x'));
  EXPECT_TRUE(is_dropped(large));  // at its header, before all of it arrived
  others[0].receive();
  EXPECT_TRUE(others[0].ended());  // the oldest made room
  start(1, 2, {"limit:10", "join", "finish"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

struct WatchdogTest : RankScripts {
  ~WatchdogTest() override { EXPECT_LT(seconds(), kSoon); }
};

TEST_F(WatchdogTest, ARankThatIsKilledEndsAll) {
  start_all(3, {"limit:1", "join", "unflushed:on the way", "exchange:5", "2@kill", "0@hang", "exchange:1"});
  expect_ending(0, {"rank 2 (pid ", "is gone", "killed or crashed"}, {1});
  EXPECT_EQ(result(2).status, -1);
  EXPECT_EQ(result(0).out + result(1).out, "on the wayon the way");
}

TEST_F(WatchdogTest, RankZeroThatIsKilledEndsAll) {
  start_all(4, {"limit:1", "join", "0@kill", "exchange:1"});
  expect_ending(1, {"rank 0 (pid ", "is gone"}, {2, 3});
}

TEST_F(WatchdogTest, ARankThatExitsEarlyEndsAll) {
  start_all(3, {"limit:1", "join", "1@exit:0", "exchange:1"});
  expect_ending(0, {"rank 1 (pid ", "is gone"}, {2});
}

TEST_F(WatchdogTest, AnExceptionIsReportedByItsRankAlone) {
  start_all(3, {"limit:1", "join", "1@throw:no memory", "hang"});
  expect_ending(1, {"error: no memory"}, {0, 2});
}

TEST_F(WatchdogTest, AFailureIsReportedByItsRankAlone) {
  start_all(3, {"limit:1", "join", "2@fail:no luck", "exchange:1"});
  expect_ending(2, {"rank 2 (pid ", "no luck"}, {0, 1});
}

TEST_F(WatchdogTest, AFailureOfRankZeroIsReportedByIt) {
  start_all(3, {"limit:1", "join", "0@fail:no luck", "hang"});
  expect_ending(0, {"rank 0 (pid ", "no luck"}, {1, 2});
}

TEST_F(WatchdogTest, AFailureAfterFinishIsItsOwn) {
  start_all(2, {"limit:1", "join", "finish", "1@fail:no luck"});
  expect_ending(1, {"rank 1 (pid ", "no luck"}, {});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
}

TEST_F(WatchdogTest, OfManyFailuresOneIsReported) {
  start_all(4, {"limit:1", "join", "exchange:1", "fail:no luck"});
  int reporters = 0;
  for (size_t rank = 0; rank < 4; ++rank) {
    reporters += result(rank).status == 1;
    EXPECT_EQ(result(rank).error.empty(), result(rank).status != 1) << result(rank).error;
    EXPECT_TRUE(result(rank).status == 1 || result(rank).status == kExitPeerFailed) << result(rank).status;
  }
  EXPECT_EQ(reporters, 1);
}

TEST_F(WatchdogTest, AFailedHealthCheckIsAFailure) {
  start_all(3, {"limit:1", "join", "1@health:link 3 is down", "hang"});
  expect_ending(1, {"rank 1 (pid ", "link 3 is down"}, {0, 2});
}

TEST_F(WatchdogTest, AStragglerIsNamedWithItsPhase) {
  start_all(3, {"limit:1", "join", "phase:step 1", "phase:step 2", "2@hang", "phase:step 3", "hang"});
  expect_ending(0, {"rank 2 (pid ", "`step 2`", "1 s longer", "rank 0", "`step 3`"}, {1, 2});
}

TEST_F(WatchdogTest, RankZeroCanBeAStraggler) {
  start_all(2, {"limit:1", "join", "phase:step 1", "0@hang", "phase:step 2", "hang"});
  expect_ending(0, {"rank 0 (pid ", "in `step 1`", "rank 1", "in `step 2`"}, {1});
}

TEST_F(WatchdogTest, ARankMissingInAnExchangeIsAStraggler) {
  start_all(2, {"limit:1", "join", "phase:step 1", "1@hang", "exchange:3"});
  expect_ending(0, {"rank 1 (pid ", "in `step 1`"}, {1});
}

TEST_F(WatchdogTest, APhaseWithoutTimeoutMayTakeLong) {
  start_all(2, {"limit:0.5", "join", "phase:a", "unlimited:checkpoint", "0@sleep:1.5", "phase:b", "1@phase:c",
                "0@phase:c", "sum", "finish"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

TEST_F(WatchdogTest, ASlowRankThatMakesProgressIsNoStraggler) {
  start_all(2, {"limit:1", "join", "phase:a", "1@sleep:0.6", "phase:b", "1@sleep:0.6", "phase:c",
                "1@sleep:0.6", "phase:d", "finish"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

TEST_F(WatchdogTest, ARankThatIsStoppedEndsTheOthers) {
  start_all(3, {"limit:1", "join", "unlimited:sampling", "1@stop", "hang"});
  expect_ending(0, {"rank 1 (pid ", "not answered for 1 s", "stopped"}, {2});
  process(1).signal(SIGCONT);
  EXPECT_EQ(result(1).status, kExitPeerFailed);
}

TEST_F(WatchdogTest, RankZeroThatIsStoppedEndsTheOthers) {
  start_all(3, {"limit:1", "join", "unlimited:sampling", "0@stop", "hang"});
  expect_ending(1, {"rank 0 (pid ", "not answered for 1 s", "stopped"}, {2});
  process(0).signal(SIGCONT);
  EXPECT_NE(result(0).status, 0);
}

TEST_F(WatchdogTest, AllStoppedAndContinuedIsNoFailure) {
  start_all(3, {"limit:1", "join", "phase:a", "print:ready", "sleep:0.4", "phase:b", "sum", "finish"});
  for (size_t rank = 0; rank < 3; ++rank) printed(rank, 1);
  for (size_t rank = 0; rank < 3; ++rank) process(rank).signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  for (size_t rank = 0; rank < 3; ++rank) process(rank).signal(SIGCONT);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(result(rank).status, 0) << result(rank).error;
}

// After an accepted hello, a message that cannot be read ends the run with an error, and nothing crashes.
TEST_F(WatchdogTest, AMessageThatCannotBeReadEndsAll) {
  const std::pair<MessageKind, std::string> messages[] = {
      {MessageKind::kHeartbeat, "{}"},
      {MessageKind::kHeartbeat, std::string(1 << 20, '[')},
      {MessageKind::kHeartbeat, "{\"phases\":-1,\"timeout\":1,\"phase\":\"x\"}"},
      {MessageKind::kShutdown, "{\"reporter\":"},
      {MessageKind::kGathered, std::string(9, '\xff')},
      {static_cast<MessageKind>(99), ""}};
  size_t rank = 0;
  for (const auto& [kind, body] : messages) {
    start(0, 2, {"limit:5", "join", "hang"});
    {
      Connection peer = connect_raw(port);
      peer.send(MessageKind::kHello, hello(1, 2));
      peer.send(kind, body);
      EXPECT_TRUE(is_dropped(peer));
    }
    expect_error(rank++, {"forged sent"});
  }
}

struct Stall : RankScripts {};

TEST_F(Stall, EndsAll) {
  start_all(2, {"limit:0.75", "join", "phase:the middle", "hang"});
  expect_ending(0, {"no rank", "`the middle`", "18 s"}, {1});
  EXPECT_GT(seconds(), 17);
}

}  // namespace
}  // namespace tessera::testing
