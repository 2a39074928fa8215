// The launcher, as a user runs a program that calls it.
#include <sched.h>

#include <sstream>

#include "tests/train/launch/rank_scripts.h"
#include "train/launch/launcher.h"

namespace tessera::testing {
namespace {

struct Launch : RankScripts {
  // The launcher is process 0.
  void launch(Words script, const Words& environment = {},
              const std::string& program = SCRIPTED_RANK_BINARY) {
    Words clean = {"-u", "OMP_NUM_THREADS"};
    clean.insert(clean.end(), environment.begin(), environment.end());
    run(clean, program, script);
  }
  static int count(const std::string& part, const std::string& text) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
};

TEST_F(Launch, RunsEveryRankAndPrefixesTheirOutput) {
  launch({"launch:3", "join", "print:hello", "error:beware", "exchange:1000", "finish", "unflushed:end"});
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  const std::string& out = result(0).out;
  EXPECT_EQ(count("hello\n", out), 3) << out;
  for (const char* part : {"rank 1: hello\n", "rank 2: hello\n", "rank 1: end\n", "rank 2: end\n"})
    expect_in(part, out);
  EXPECT_EQ(count("rank 0", out), 0) << out;
  for (const char* part : {"rank 0: beware\n", "rank 1: beware\n", "rank 2: beware\n"})
    expect_in(part, result(0).error);
  EXPECT_EQ(count("\n", result(0).error), 3) << result(0).error;
}

TEST_F(Launch, AForgedHelloDoesNotEndTheRun) {
  launch({"launch:2", "limit:5", "0@show:MASTER_PORT", "sleep:0.5", "join", "exchange:100", "finish"});
  const int port_of_run = std::stoi(printed(0, 1));
  std::vector<Connection> others;
  for (const std::string& text : {hello(1, 2), hello(1, 3)}) {
    others.push_back(connect_raw(port_of_run));
    others.back().send(MessageKind::kHello, text);
  }
  EXPECT_EQ(result(0).status, 0) << result(0).error;
}

TEST_F(Launch, TheSecretIsNotSeenInTheRanks) {
  launch({"launch:2", "environment"}, {"TESSERA_SECRET=of-another-launch"});
  const std::string& out = result(0).out;
  EXPECT_EQ(count("TESSERA_LAUNCHER=1", out), 2) << out;
  EXPECT_EQ(count("of-another-launch", out), 0);
  for (size_t at = out.find("TESSERA_SECRET="); at != std::string::npos;
       at = out.find("TESSERA_SECRET=", at + 1))
    EXPECT_EQ(out.at(at + std::string("TESSERA_SECRET=").size()), '\0');
}

TEST_F(Launch, AKilledRankIsReportedOnceByTheLauncher) {
  launch({"launch:3", "limit:2", "join", "1@kill", "exchange:1"});
  EXPECT_EQ(result(0).status, 128 + SIGKILL);
  expect_in("scripted_rank: error: rank 1 (pid ", result(0).error);
  expect_in("signal 9 (SIGKILL)", result(0).error);
  EXPECT_EQ(count("\n", result(0).error), 1) << result(0).error;
  EXPECT_LT(seconds(), 5);
}

TEST_F(Launch, RankZeroKilledIsReportedOnceByTheLauncher) {
  launch({"launch:3", "limit:2", "join", "0@kill", "exchange:1"});
  EXPECT_EQ(result(0).status, 128 + SIGKILL);
  expect_in("rank 0 (pid ", result(0).error);
  EXPECT_EQ(count("\n", result(0).error), 1) << result(0).error;
}

TEST_F(Launch, ARankThatFailsReportsItsError) {
  launch({"launch:3", "limit:2", "join", "2@fail:no luck", "hang"});
  EXPECT_EQ(result(0).status, 1);
  EXPECT_EQ(result(0).error, "rank 2: scripted_rank: error: no luck\n");
}

TEST_F(Launch, ARankThatEndsBeforeTheRendezvousEndsAll) {
  launch({"launch:3", "limit:20", "0@throw:no data", "join"});
  EXPECT_EQ(result(0).status, 1);
  EXPECT_EQ(result(0).error, "rank 0: scripted_rank: error: no data\n");
  EXPECT_LT(seconds(), 5);
}

TEST_F(Launch, ARankThatExitsSilentlyIsReported) {
  launch({"launch:3", "limit:2", "join", "2@exit:0", "exchange:1"});
  EXPECT_EQ(result(0).status, 1);
  expect_in("rank 2 (pid ", result(0).error);
  expect_in("before the others", result(0).error);
  EXPECT_EQ(count("\n", result(0).error), 1) << result(0).error;
}

TEST_F(Launch, TheFirstBadExitCodeIsTheLaunchers) {
  launch({"launch:2", "limit:2", "join", "1@exit:42", "exchange:1"});
  EXPECT_EQ(result(0).status, 42);
}

TEST_F(Launch, ARankThatDoesNotEndIsKilledAfterThreeSeconds) {
  launch({"launch:2", "limit:30", "1@throw:bad", "catch", "hang"});
  EXPECT_EQ(result(0).status, 1);
  EXPECT_EQ(result(0).error, "rank 1: scripted_rank: error: bad\n");
  EXPECT_GT(seconds(), 2.9);
  EXPECT_LT(seconds(), 7);
}

TEST_F(Launch, ForwardsSignals) {
  launch({"launch:3", "limit:5", "catch", "join", "unlimited:a", "print:ready", "wait_signal", "exchange:1",
          "finish", "print:done"});
  printed(0, 3);
  process(0).signal(SIGTERM);
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(count("done\n", result(0).out), 3) << result(0).out;
  EXPECT_EQ(result(0).error, "");
}

// The kernel hands a signal to any thread that does not block it; libraries have threads of their own.
TEST_F(Launch, ForwardsSignalsThatAnyThreadGets) {
  launch({"thread", "launch:2", "limit:5", "catch", "join", "unlimited:a", "print:ready", "wait_signal",
          "exchange:1", "finish", "print:done"});
  printed(0, 2);
  process(0).signal(SIGTERM);
  EXPECT_EQ(result(0).status, 0) << result(0).error;
  EXPECT_EQ(count("done\n", result(0).out), 2) << result(0).out;
}

TEST_F(Launch, NothingOutlivesAKilledLauncher) {
  launch({"launch:3", "limit:30", "catch", "join", "unlimited:a", "pid", "hang"});
  std::vector<pid_t> pids;
  std::istringstream lines(printed(0, 3));
  for (std::string line; std::getline(lines, line);)
    pids.push_back(std::stoi(line.substr(line.rfind(' ') + 1)));
  ASSERT_EQ(pids.size(), 3u);
  for (const pid_t pid : pids) EXPECT_FALSE(is_gone(pid)) << pid;
  process(0).signal(SIGKILL);
  EXPECT_EQ(result(0).status, -1);
  for (const pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return is_gone(pid); })) << pid;
}

TEST_F(Launch, SharesTheProcessorsUnlessToldOtherwise) {
  cpu_set_t processors;
  ASSERT_EQ(sched_getaffinity(0, sizeof processors, &processors), 0);
  launch({"launch:2", "show:OMP_NUM_THREADS"});
  const std::string share = std::to_string(std::max(1, CPU_COUNT(&processors) / 2));
  expect_in("rank 1: " + share + "\n", result(0).out);
  run({"OMP_NUM_THREADS=5"}, SCRIPTED_RANK_BINARY, {"launch:2", "show:OMP_NUM_THREADS"});
  expect_in("rank 1: 5\n", result(1).out);
}

TEST_F(Launch, AProgramThatCannotBeRunAgainIsAnError) {
  const std::filesystem::path copy = folder_ / "copy";
  std::filesystem::copy_file(SCRIPTED_RANK_BINARY, copy);
  launch({"no_exec", "launch:2", "print:hello"}, {}, copy);
  EXPECT_EQ(result(0).status, 1);
  EXPECT_EQ(result(0).out, "");
  EXPECT_EQ(result(0).error,
            "scripted_rank: error: cannot start rank 0 of 2: this program's file cannot be executed again: "
            "Permission denied\n");
}

}  // namespace
}  // namespace tessera::testing
