// Ranks as real processes: they meet or refuse, exchange, and end together whatever happens to one of them.
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/train/launch/ranks.h"
#include "train/launch/process_group.h"

namespace tessera::testing {
namespace {

// What ends a run is known after the time limit of 1 s at the latest, and told within a few.
constexpr double kSoon = 6;

struct Meeting : Ranks {
  // Rank 0 says it; the others are told the same and end with it.
  void expect_refusal(std::initializer_list<std::string> parts, std::initializer_list<size_t> others) {
    expect_ending(0, parts, others);
    for (const size_t rank : others)
      for (const std::string& part : parts) expect_in(part, result(rank).out);
    EXPECT_LT(seconds(), kSoon);
  }
};

TEST_F(Meeting, ExchangesBytesInTheOrderOfRanks) {
  const Words script = {"join", "exchange:0", "exchange:3000000", "sum", "exchange:7", "at:a",
                        "sum",  "leave"};
  for (int size = 1; size <= 4; ++size) {
    const size_t first = static_cast<size_t>(size * (size - 1) / 2);
    start_all(size, script);
    for (size_t rank = first; rank < first + static_cast<size_t>(size); ++rank)
      EXPECT_EQ(result(rank).status, 0) << size << " ranks: " << result(rank).error;
  }
}

TEST_F(Meeting, WaitsForWhoComesLate) {
  start(1, 2, {"limit:5", "join", "exchange:10", "leave"});
  start(0, 2, {"limit:5", "sleep:0.5", "join", "exchange:10", "leave"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

TEST_F(Meeting, NamesWhoIsMissing) {
  start(0, 4, {"limit:1", "join"});
  start(1, 4, {"limit:1", "join"});
  expect_refusal({"ranks 2, 3 did not come", std::to_string(port), "1 s"}, {1});
}

TEST_F(Meeting, RefusesARankThatComesTwice) {
  start(0, 3, {"join"});
  start(1, 3, {"join"});
  start(1, 3, {"join"});
  expect_refusal({"two processes are rank 1", "RANK of its own"}, {1, 2});
}

TEST_F(Meeting, RefusesAnotherWorldSize) {
  start(0, 2, {"join"});
  start(1, 3, {"join"});
  expect_refusal({"rank 1 (pid ", "a run of 3 ranks, and rank 0 to one of 2"}, {1});
}

TEST_F(Meeting, RefusesAnotherBuild) {
  start_all(3, {"2@build:build 2", "join"});
  expect_refusal({"rank 2 (pid ", "another build", "build 2 where rank 0 is build 1"}, {1, 2});
}

TEST_F(Meeting, RefusesAnotherConfigurationByItsFirstLine) {
  start_all(3, {"1@config:a: 1\nb: 3\nc: 4\n", "join"});
  expect_refusal({"rank 1 (pid ", "`b: 3` where rank 0 has `b: 2`", "the same configuration"}, {1, 2});
}

TEST_F(Meeting, RefusesAConfigurationThatIsLonger) {
  start_all(2, {"1@config:a: 1\nb: 2\nc: 4\n", "join"});
  expect_refusal({"`c: 4` where rank 0 has `nothing`"}, {1});
}

TEST_F(Meeting, APortThatIsTakenEndsAll) {
  const FileDescriptor other = listen_at("127.0.0.1", port, Reach::kThisMachine);
  start_all(2, {"limit:1", "join"});
  expect_error(0, {"cannot listen at 127.0.0.1:" + std::to_string(port), "in use", "another MASTER_PORT"});
  expect_error(1, {"rank 1 did not meet rank 0", std::to_string(port), "did not answer as a rank 0 does"});
  EXPECT_LT(seconds(), kSoon);
}

TEST_F(Meeting, AMasterThatCannotBeReachedIsAnError) {
  start(1, 2, {"limit:1", "join"});
  start(1, 2, {"limit:1", "join"}, {"MASTER_ADDR=no-such-host.invalid"});
  expect_error(0, {"rank 1 did not meet rank 0 at 127.0.0.1:" + std::to_string(port), "1 s", "refused"});
  expect_error(1, {"the name no-such-host.invalid is not known", "MASTER_ADDR"});
}

TEST_F(Meeting, AnotherMachinesAddressCannotBeListenedAt) {
  start(0, 2, {"join"}, {"MASTER_ADDR=192.0.2.1"});  // kept for documents: nobody has it
  expect_error(0, {"rank 0 cannot listen at 192.0.2.1", "MASTER_ADDR must be rank 0's machine"});
}

TEST_F(Meeting, ASocketThatIsNoneIsAnError) {
  start(0, 2, {"join"}, {std::string(kLauncherVariable) + "=1", std::string(kListenVariable) + "=99"});
  expect_error(0, {kListenVariable, "is 99, which is not a listening socket"});
}

TEST_F(Meeting, IgnoresStrangers) {
  start(0, 2, {"limit:5", "join", "exchange:100", "leave"});
  std::vector<FileDescriptor> strangers;
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "", "TS", "SSH-2.0-x\r\n"}) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    strangers.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
    int connected = -1;
    for (int i = 0; i < 200 && connected != 0; ++i) {
      connected = connect(strangers.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
      if (connected != 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_EQ(connected, 0);
    ASSERT_EQ(::write(strangers.back().get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  start(1, 2, {"limit:5", "join", "exchange:100", "leave"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

// Whoever knows neither the secret nor what follows it: without the check each would end the meeting or join
// it.
TEST_F(Meeting, IgnoresWhoDoesNotKnowTheSecret) {
  const Words secret = {"TESSERA_SECRET=0123456789abcdef"},
              script = {"limit:5", "join", "exchange:100", "leave"};
  start(0, 2, script, secret);
  std::vector<Connection> strangers;
  for (const std::string& text : {hello(1, 2), hello(1, 3), hello(7, 2), "0123456789abcdeF" + hello(1, 2),
                                  std::string("0123456789abcde"), std::string(100000, '[')}) {
    strangers.push_back(stranger(port));
    strangers.back().send(MessageKind::kHello, text);
  }
  for (Connection& each : strangers)  // each is sent away before the rank comes
    for (int i = 0; i < 300 && !each.ended(); ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10)))
      each.receive();
  for (const Connection& each : strangers) EXPECT_TRUE(each.ended());
  start(1, 2, script, secret);
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

TEST_F(Meeting, ARankWithAnotherSecretDoesNotCome) {
  start(0, 2, {"limit:1", "join"}, {"TESSERA_SECRET=0123456789abcdef"});
  start(1, 2, {"limit:1", "join"}, {"TESSERA_SECRET=0123456789abcdeF"});
  expect_refusal({"rank 1 did not come", "without the same TESSERA_SECRET"}, {1});
}

TEST_F(Meeting, NobodyCanFillItsMemoryOrItsDescriptors) {
  start(0, 2, {"limit:10", "join", "leave"});
  std::vector<Connection> strangers;
  for (int i = 0; i < 400; ++i) strangers.push_back(stranger(port));
  Connection large = stranger(port);
  large.send(MessageKind::kHello, std::string(size_t{17} << 20, 'x'));
  for (int i = 0; i < 300 && !large.ended();
       ++i, std::this_thread::sleep_for(std::chrono::milliseconds(10))) {
    large.flush();
    large.receive();
  }
  EXPECT_TRUE(large.ended());  // at its header, before the whole came
  strangers[0].receive();
  EXPECT_TRUE(strangers[0].ended());  // the oldest made room
  start(1, 2, {"limit:10", "join", "leave"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

struct Watching : Ranks {
  ~Watching() override { EXPECT_LT(seconds(), kSoon); }
};

TEST_F(Watching, ARankThatIsKilledEndsAll) {
  start_all(3, {"limit:1", "join", "unflushed:on the way", "exchange:5", "2@kill", "0@hang", "exchange:1"});
  expect_ending(0, {"rank 2 (pid ", "is gone", "killed or crashed"}, {1});
  EXPECT_EQ(result(2).status, -1);
  EXPECT_EQ(result(0).out + result(1).out, "on the wayon the way");
}

TEST_F(Watching, RankZeroThatIsKilledEndsAll) {
  start_all(4, {"limit:1", "join", "0@kill", "exchange:1"});
  expect_ending(1, {"rank 0 (pid ", "is gone"}, {2, 3});
}

TEST_F(Watching, ARankThatExitsEarlyEndsAll) {
  start_all(3, {"limit:1", "join", "1@exit:0", "exchange:1"});
  expect_ending(0, {"rank 1 (pid ", "is gone"}, {2});
}

TEST_F(Watching, AnExceptionThatLeavesTheTeamIsToldByItsRankAlone) {
  start_all(3, {"limit:1", "join", "1@throw:no memory", "hang"});
  expect_ending(1, {"error: no memory"}, {0, 2});
}

TEST_F(Watching, AFailureIsToldByItsRankAlone) {
  start_all(3, {"limit:1", "join", "2@fail:no luck", "exchange:1"});
  expect_ending(2, {"rank 2 (pid ", "no luck"}, {0, 1});
}

TEST_F(Watching, AFailureOfRankZeroIsToldByIt) {
  start_all(3, {"limit:1", "join", "0@fail:no luck", "hang"});
  expect_ending(0, {"rank 0 (pid ", "no luck"}, {1, 2});
}

TEST_F(Watching, AFailureAfterTheTeamHasPartedIsItsOwn) {
  start_all(2, {"limit:1", "join", "leave", "1@fail:no luck"});
  expect_ending(1, {"rank 1 (pid ", "no luck"}, {});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
}

TEST_F(Watching, OfManyFailuresOneIsTold) {
  start_all(4, {"limit:1", "join", "exchange:1", "fail:no luck"});
  int speakers = 0;
  for (size_t rank = 0; rank < 4; ++rank) {
    speakers += result(rank).status == 1;
    EXPECT_EQ(result(rank).error.empty(), result(rank).status != 1) << result(rank).error;
    EXPECT_TRUE(result(rank).status == 1 || result(rank).status == kEndedWithOthers) << result(rank).status;
  }
  EXPECT_EQ(speakers, 1);
}

TEST_F(Watching, WhatThePollFindsIsAFailure) {
  start_all(3, {"limit:1", "join", "1@poll:link 3 is down", "hang"});
  expect_ending(1, {"rank 1 (pid ", "link 3 is down"}, {0, 2});
}

TEST_F(Watching, ARankThatFallsBehindIsNamedWithItsPlace) {
  start_all(3, {"limit:1", "join", "at:step 1", "at:step 2", "2@hang", "at:step 3", "hang"});
  expect_ending(0, {"rank 2 (pid ", "at `step 2` for 1 s longer than rank 0", "`step 3`"}, {1, 2});
}

TEST_F(Watching, RankZeroFallsBehindToo) {
  start_all(2, {"limit:1", "join", "at:step 1", "0@hang", "at:step 2", "hang"});
  expect_ending(0, {"rank 0 (pid ", "at `step 1`", "than rank 1, which is at `step 2`"}, {1});
}

TEST_F(Watching, WhoIsMissingInAnExchangeIsBehind) {
  start_all(2, {"limit:1", "join", "at:step 1", "1@hang", "exchange:3"});
  expect_ending(0, {"rank 1 (pid ", "at `step 1`"}, {1});
}

TEST_F(Watching, AloneARankMayTakeItsTime) {
  start_all(2, {"limit:0.5", "join", "at:a", "alone:checkpoint", "0@sleep:1.5", "at:b", "1@at:c", "0@at:c",
                "sum", "leave"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

TEST_F(Watching, ASlowRankThatMovesIsNotBehind) {
  start_all(2, {"limit:1", "join", "at:a", "1@sleep:0.6", "at:b", "1@sleep:0.6", "at:c", "1@sleep:0.6",
                "at:d", "leave"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(result(1).status, 0) << result(1).error;
}

TEST_F(Watching, ARankThatIsStoppedEndsTheOthers) {
  start_all(3, {"limit:1", "join", "alone:sampling", "1@stop", "hang"});
  expect_ending(0, {"rank 1 (pid ", "has not answered for 1 s", "stopped"}, {2});
  process(1).signal(SIGCONT);
  EXPECT_EQ(result(1).status, kEndedWithOthers);
}

TEST_F(Watching, RankZeroThatIsStoppedEndsTheOthers) {
  start_all(3, {"limit:1", "join", "alone:sampling", "0@stop", "hang"});
  expect_ending(1, {"rank 0 (pid ", "has not answered for 1 s", "stopped"}, {2});
  process(0).signal(SIGCONT);
  EXPECT_NE(result(0).status, 0);
}

TEST_F(Watching, AllStoppedAndGoingOnIsNoFailure) {
  start_all(3, {"limit:1", "join", "at:a", "print:ready", "sleep:0.4", "at:b", "sum", "leave"});
  for (size_t rank = 0; rank < 3; ++rank) printed(rank, 1);
  for (size_t rank = 0; rank < 3; ++rank) process(rank).signal(SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  for (size_t rank = 0; rank < 3; ++rank) process(rank).signal(SIGCONT);
  for (size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(result(rank).status, 0) << result(rank).error;
}

struct Standstill : Ranks {};

TEST_F(Standstill, EndsAll) {
  start_all(2, {"limit:0.75", "join", "at:the middle", "hang"});
  expect_ending(0, {"no rank has got on from `the middle` for 18 s"}, {1});
  EXPECT_GT(seconds(), 17);
}

}  // namespace
}  // namespace tessera::testing
