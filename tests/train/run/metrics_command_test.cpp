// train.metrics_command: a program that gets the lines of metrics.jsonl, and what it may do: nothing to the
// run.
#include "train/run/metrics_command.h"

#include "kernels/base/check.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

struct MetricsCommands : TrainRanks {
  void SetUp() override {}

  // A run of six steps with the command; what it printed
  std::string runs_with(const std::string& command, const Words& more = {}) const {
    const ProcessResult result =
        trains(sets(with({"train.steps=6", "sampling.every=0", "train.metrics_command=" + command}, more)));
    return result.out;
  }
  std::string text(const std::string& name) const { return read_file(folder / name); }
  static size_t times(const std::string& all, const std::string& part) {
    size_t found = 0;
    for (size_t at = 0; (at = all.find(part, at)) != std::string::npos; ++at) ++found;
    return found;
  }
};

TEST_F(MetricsCommands, GetEveryLine) {
  const std::string out = runs_with("cat > seen.jsonl; echo the end");
  EXPECT_EQ(text("seen.jsonl"), text("out/metrics.jsonl"));
  EXPECT_GT(times(text("seen.jsonl"), "\n"), 8u);
  EXPECT_EQ(text("out/metrics_command.log"), "the end\n");
  EXPECT_EQ(out.find("metrics_command"), std::string::npos) << out;
  // A run that goes on starts it anew: it gets the lines from there on.
  trains(with(sets({"train.steps=8", "sampling.every=0", "train.metrics_command=cat > more.jsonl"}),
              {"--resume"}));
  const std::string more = text("more.jsonl"), all = text("out/metrics.jsonl");
  EXPECT_TRUE(more.starts_with("{\"type\":\"resume\",\"step\":6")) << more.substr(0, 80);
  EXPECT_TRUE(all.ends_with(more));
  EXPECT_EQ(text("seen.jsonl"), all.substr(0, all.size() - more.size()));
}

TEST_F(MetricsCommands, OfSeveralRanksAreOne) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  trains(by(2, "out", {"train.steps=3", "train.metrics_command=ls /proc/self/fd > open; cat >> seen.jsonl"}));
  EXPECT_EQ(text("seen.jsonl"), text("out/metrics.jsonl"));
  EXPECT_EQ(text("open"), "0\n1\n2\n3\n") << "of ls, whose folder is the fourth; no connection of a rank";
}

TEST_F(MetricsCommands, ThatEndEarlyAreToldOfOnce) {
  const std::string out = runs_with("head -n 2 > seen.jsonl; echo no network >&2; exit 3",
                                    {"train.steps=300", "evaluation.every=0"});
  EXPECT_EQ(times(out, "train.metrics_command"), 1u) << out;
  for (const char* part : {"exit code 3", "metrics_command.log", "run goes on"})
    EXPECT_EQ(times(out, part), 1u) << part << "\n" << out;
  EXPECT_EQ(times(text("seen.jsonl"), "\n"), 2u);
  EXPECT_EQ(text("out/metrics_command.log"), "no network\n");
  EXPECT_EQ(times(text("out/metrics.jsonl"), "\"type\":\"step\""), 300u);
  EXPECT_EQ(losses("out").size(), 600u);
}

TEST_F(MetricsCommands, ThatCannotBeFoundAreToldOf) {
  const std::string out = runs_with("no_such_program_anywhere");
  EXPECT_NE(out.find("exit code 127"), std::string::npos) << out;
  EXPECT_NE(text("out/metrics_command.log").find("no_such_program_anywhere"), std::string::npos);
}

TEST_F(MetricsCommands, ThatFailInTheEndAreToldOf) {
  const std::string out = runs_with("cat > /dev/null; exit 5");
  EXPECT_EQ(times(out, "exit code 5"), 1u) << out;
}

// Far more lines than a pipe holds: the run neither waits for them nor for the program.
TEST_F(MetricsCommands, ThatNeverReadDoNotHoldARun) {
  const auto start = std::chrono::steady_clock::now();
  MetricsCommand command(fmt::format("echo $$ > {}/pid; exec sleep 1000", folder.string()),
                         folder / "output.log");
  const std::string line(1000, 'x');
  std::string trouble;
  for (int i = 0; i < 20'000; ++i) command.write(line + "\n");
  EXPECT_LT(seconds_since(start), 5) << "a caller waited";
  trouble = command.take_trouble();
  for (const char* part : {"does not read", "16 MiB", "run goes on"})
    EXPECT_NE(trouble.find(part), std::string::npos) << trouble;
  EXPECT_EQ(command.take_trouble(), "") << "told once";
  command.finish();
  EXPECT_LT(seconds_since(start), MetricsCommand::kEndSeconds + 10);
  EXPECT_EQ(command.take_trouble(), "");
  const pid_t pid = std::stoi(text("pid"));
  EXPECT_FALSE(is_gone(pid)) << "it is left alone";
  kill(pid, SIGKILL);
}

// One that reads slowly gets all lines, since they fit into what waits.
TEST_F(MetricsCommands, ThatReadLateGetAllLines) {
  std::string sent;
  {
    MetricsCommand command(fmt::format("sleep 0.5; cat > {}/seen.txt", folder.string()),
                           folder / "output.log");
    for (int i = 0; i < 3000; ++i) {
      const std::string line = std::to_string(i) + std::string(100, ' ') + "\n";
      sent += line;
      command.write(line);
    }
    command.finish();
    EXPECT_EQ(command.take_trouble(), "");
  }
  EXPECT_EQ(text("seen.txt"), sent);
}

// Ctrl-C reaches the group of the terminal, which the program is not of: it gets the last lines, too.
TEST_F(MetricsCommands, OutliveTheSignalThatStopsTheRun) {
  Process running(TRAIN_BINARY,
                  with({"--config", "small.yaml"},
                       sets({"train.steps=100000", "evaluation.every=0", "sampling.every=0",
                             "train.metrics_command=ps -o pgid= -p $$ > group; cat > seen.jsonl"})),
                  {.folder = folder});
  wait_for_steps("out", 3);
  running.signal(SIGINT);
  EXPECT_EQ(running.finish().status, 0);
  EXPECT_EQ(text("seen.jsonl"), text("out/metrics.jsonl"));
  EXPECT_NE(std::stoi(text("group")), getpgrp());
}

}  // namespace
}  // namespace tessera::testing
