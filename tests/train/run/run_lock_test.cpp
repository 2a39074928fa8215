// A run whose folder is removed, moved or taken over: it stops, says what has happened, and neither writes
// nor removes anything there.
#include "train/run/run_lock.h"

#include <sys/mount.h>

#include <nlohmann/json.hpp>

#include "tests/says.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct LockOfARun : InTempFolder {
  const fs::path run = folder_ / "run", other = folder_ / "other";

  // What a rank with the lock, and one without it, say after something was done to the folder
  void expect_lost(const std::function<void()>& lose, std::initializer_list<std::string_view> facts) const {
    fs::remove_all(run);
    fs::remove_all(other);
    fs::create_directory(run);
    const RunLock lock(run), watch(run, RunLock::Hold::kWatch);
    lock.check_held();
    watch.check_held();
    lose();
    for (const RunLock* of : {&lock, &watch}) {
      try {
        of->check_held();
        ADD_FAILURE() << *facts.begin();
      } catch (const Error& error) {
        EXPECT_TRUE(says(error.what(), {run.string()}));
        EXPECT_TRUE(says(error.what(), facts));
      }
    }
  }
};

TEST_F(LockOfARun, TellsWhatHasHappenedToTheFolder) {
  const std::string place = other.string();
  expect_lost([&] { fs::remove_all(run); }, {"it was removed", "Start the run again"});
  expect_lost([&] { fs::remove_all(run), fs::create_directory(run); },
              {"it was removed", "another one was made", "--set train.folder=NAME"});
  expect_lost([&] { fs::rename(run, other); },
              {"it was moved to " + place, "./train " + place + " --resume"});
  expect_lost([&] { fs::rename(run, other), fs::create_directory(run); },
              {"it was moved to " + place, "another one", "./train " + place + " --resume"});
  expect_lost([&] { fs::remove_all(run), write("run", "a file"); }, {"it was removed"});
  expect_lost([&] { fs::remove(run / "run.lock"); }, {"run.lock was removed", "--resume"});
  expect_lost([&] { write("lock", ""), fs::rename(folder_ / "lock", run / "run.lock"); },
              {"run.lock was replaced", "--resume"});
}

TEST_F(LockOfARun, NamesTheRunThatHasTakenThePlace) {
  std::optional<RunLock> theirs;
  const std::string writer = "process " + std::to_string(getpid());
  const auto take = [&] { fs::create_directories(run), theirs.emplace(run); };
  expect_lost([&] { fs::remove_all(run), take(); }, {"it was removed", "another run", writer});
  theirs.reset();
  expect_lost([&] { fs::remove(run / "run.lock"), take(); },
              {"run.lock was replaced", "another run", writer});
}

TEST_F(LockOfARun, TellsWhereItsFileSystemIsNotMounted) {
  const auto mounted = [&] { return mount("none", run.c_str(), "tmpfs", 0, "") == 0; };
  fs::create_directory(run);
  if (!mounted()) GTEST_SKIP() << "no right to mount";
  umount2(run.c_str(), MNT_DETACH);
  expect_lost([&] { EXPECT_TRUE(mounted()); }, {"not mounted", "--resume"});
  umount2(run.c_str(), MNT_DETACH);
  fs::create_directories(run);
  ASSERT_TRUE(mounted());
  const RunLock lock(run);
  umount2(run.c_str(), MNT_DETACH);
  EXPECT_THROW(lock.check_held(), Error);
}

struct RunWithoutItsFolder : TrainRanks {
  void SetUp() override {}
  static inline const Words kEndless =
      sets({"train.steps=1000000", "optimizer.schedule=constant", "evaluation.every=0", "sampling.every=0",
            "checkpoint.every=5", "checkpoint.keep=1"});

  // A run of so many ranks that is ended by what `lose` does after its second checkpoint. One rank stands
  // still meanwhile.
  ProcessResult ended_by(int ranks, const std::function<void()>& lose) const {
    Process process(TRAIN_BINARY,
                    with({"--config", "small.yaml", "--ranks", std::to_string(ranks)}, kEndless),
                    {.folder = folder});
    wait_for_steps("out", 12);
    if (ranks == 1) process.signal(SIGSTOP);
    lose();
    process.signal(SIGCONT);
    return process.finish();
  }
  void expect_stopped(const ProcessResult& result, const Words& parts) const {
    EXPECT_EQ(result.status, 1) << result.out;
    expect_one_message(result.error, with({"train: error: the run's folder out "}, parts));
  }
};

TEST_F(RunWithoutItsFolder, StopsAndLeavesNothing) {
  std::string why_not;
  const int most = can_communicate(Device::kCpu, why_not) ? 2 : 1;
  for (int ranks = 1; ranks <= most; ++ranks) {
    const fs::path moved = folder / fmt::format("moved{}", ranks);
    expect_stopped(ended_by(ranks, [&] { fs::rename(folder / "out", moved); }),
                   {"it was moved to " + fs::canonical(folder).string()});
    EXPECT_FALSE(fs::exists(folder / "out"));
    trains({"--resume", "--set", "train.folder=" + moved.filename().string(), "--set", "train.steps=60"});
    if (ranks == 1)
      expect_stopped(ended_by(ranks, [&] { fs::remove_all(folder / "out"); }), {"it was removed"});
    EXPECT_FALSE(fs::exists(folder / "out"));
    expect_stopped(ended_by(ranks, [&] { fs::remove(folder / "out/run.lock"); }), {"run.lock was removed"});
    fs::remove_all(folder / "out");
  }
}

TEST_F(RunWithoutItsFolder, TouchesNothingOfTheRunThatTookItsPlace) {
  std::vector<int> theirs;
  const auto take = [&] {
    fs::remove_all(folder / "out");
    fs::create_directory(folder / "beside");  // where its output is kept
    const ProcessResult taken = run_process(
        TRAIN_BINARY,
        with({"--config", "../small.yaml"},
             sets({"train.folder=../out", "data.train=../text.txt", "train.seed=2", "evaluation.every=0"})),
        {.folder = folder / "beside"});
    EXPECT_EQ(taken.status, 0) << taken.error;
    theirs = checkpoints("out");
  };
  expect_stopped(ended_by(1, take), {"removed"});
  EXPECT_EQ(theirs, (std::vector{25, 50}));
  EXPECT_EQ(checkpoints("out"), theirs);
  trains({"--set", "train.seed=2", "--set", "train.steps=60", "--set", "evaluation.every=0", "--resume"});
}

// Checkpoints of earlier parts of a run are its own; what somebody puts beside them is not.
TEST_F(RunWithoutItsFolder, AResumedRunRemovesTheCheckpointsOfItsEarlierParts) {
  const auto settings = [](int steps) {
    return sets({"train.steps=" + std::to_string(steps), "checkpoint.every=10", "checkpoint.keep=2",
                 "evaluation.every=0"});
  };
  trains(settings(20));
  EXPECT_EQ(checkpoints("out"), (std::vector{10, 20}));
  trains(with(settings(40), {"--resume"}));
  EXPECT_EQ(checkpoints("out"), (std::vector{30, 40}));
}

TEST_F(RunWithoutItsFolder, LosesTheMetricsAloudAndGoesOn) {
  Process process(TRAIN_BINARY, with({"--config", "small.yaml"}, kEndless), {.folder = folder});
  wait_for_steps("out", 12);
  fs::remove(folder / "out/metrics.jsonl");
  wait_for_steps("out", 3);
  process.signal(SIGTERM);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("out/metrics.jsonl was removed"), std::string::npos) << result.out;
  EXPECT_EQ(read_file(folder / "out/metrics.jsonl").find(R"("step":12,)"), std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
