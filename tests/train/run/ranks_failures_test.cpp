// Runs of several ranks that are stopped, refused, or lose a rank: one message, an exit code that tells, no
// process left over, and a last checkpoint to resume from.
#include "tests/ranks_by_hand.h"
#include "tests/train_ranks.h"
#include "train/launch/connection.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A run that goes on until something ends it, under the program's own launcher.
struct RanksThatEnd : TrainRanks {
  static inline const Words kEndless =
      sets({"train.steps=100000", "optimizer.schedule=constant", "evaluation.every=0", "sampling.every=0",
            "checkpoint.every=5", "checkpoint.keep=2", "train.time_limit=2"});

  // Once it is past its second checkpoint.
  void start(int ranks) {
    process.emplace(TRAIN_BINARY,
                    with({"--config", "small.yaml", "--ranks", std::to_string(ranks)}, kEndless),
                    Process::Options{.folder = folder});
    wait_for_steps("out", 12);
    find_ranks(ranks);
  }

  void find_ranks(int ranks) {
    const std::string launcher = std::to_string(process->pid());
    std::ifstream children("/proc/" + launcher + "/task/" + launcher + "/children");
    for (pid_t pid = 0; children >> pid;) pids.push_back(pid);
    ASSERT_EQ(pids.size(), static_cast<size_t>(ranks));
    began = Clock::now();
  }

  ProcessResult end() {
    const ProcessResult result = process->finish();
    seconds = std::chrono::duration<double>(Clock::now() - began).count();
    for (const pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return is_gone(pid); })) << pid;
    return result;
  }

  // As one rank alone, which reads every byte of the checkpoint.
  void goes_on() const {
    const int step = checkpoints("out").back();
    trains(with(kEndless, {"--resume", "--ranks", "1", "--set", "train.steps=" + std::to_string(step + 1)}));
    EXPECT_EQ(checkpoints("out").back(), step + 1);
  }

  std::optional<Process> process;
  std::vector<pid_t> pids;  // by rank
  Clock::time_point began;
  double seconds = 0;
};

TEST_F(RanksThatEnd, ASignalEndsAllAfterOneStep) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) {
    fs::remove_all(folder / "out");
    pids.clear();
    start(3);
    process->signal(number);
    const ProcessResult result = end();
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_EQ(result.error, "");
    const size_t said = result.out.find("stopped by a signal");
    ASSERT_NE(said, std::string::npos) << result.out;
    EXPECT_EQ(result.out.find("stopped by a signal", said + 1), std::string::npos) << result.out;
    const int step = checkpoints("out").back();
    EXPECT_EQ(values("out", "loss").size(), static_cast<size_t>(step));
    // What comes next is what would have come.
    const Words further =
        with(kEndless, {"--ranks", "3", "--set", "train.steps=" + std::to_string(step + 3)});
    trains(with(further, {"--resume"}));
    trains(with(further, {"--overwrite", "--set", "train.folder=whole"}));
    EXPECT_EQ(losses("out"), losses("whole"));
  }
}

TEST_F(RanksThatEnd, ASignalToOneRankCountsForAll) {
  start(3);
  kill(pids[2], SIGTERM);
  EXPECT_EQ(end().status, 0);
  EXPECT_EQ(values("out", "loss").size(), static_cast<size_t>(checkpoints("out").back()));
}

// In an evaluation, a task and a sample that take minutes: all ranks leave it after the same forward.
TEST_F(RanksThatEnd, ASignalToOneRankEndsTheForwardsOfAll) {
  std::string text, items;
  for (int i = 0; i < 60000; ++i) text += "line " + std::to_string(i) + " of a long text\n";
  for (int i = 0; i < 20000; ++i)
    items += R"({"context": "a text of this length", "choices": [" goes on", " ends"], "label": 0})"
             "\n";
  write("long.txt", text);
  write("questions.jsonl", items);
  const struct {
    const char* type;  // of the line in metrics.jsonl that must not be there
    Words settings;
    const char* after;  // the line before
  } cases[] = {{"evaluation", {"evaluation.every=1", "evaluation.sequences=1000000"}, R"("type":"start")"},
               {"evaluation",
                {"evaluation.every=1", "evaluation.sequences=1", "evaluation.tasks=questions.jsonl"},
                R"("type":"start")"},
               {"sample",
                {"sampling.every=1", "sampling.temperature=0", "sampling.tokens=100000000"},
                R"("type":"step")"}};
  for (const int ranks : {2, 3})
    for (const auto& one : cases) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", ranks, one.settings.back()));
      fs::remove_all(folder / "out");
      pids.clear();
      const Words base = with(kEndless, sets({"data.validation=long.txt", "train.micro_batch=1"}));
      process.emplace(
          TRAIN_BINARY,
          with(with({"--config", "small.yaml", "--ranks", std::to_string(ranks)}, base), sets(one.settings)),
          Process::Options{.folder = folder});
      ASSERT_TRUE(wait_until(
          [&] { return read_file(folder / "out/metrics.jsonl").find(one.after) != std::string::npos; }));
      find_ranks(ranks);
      std::this_thread::sleep_for(std::chrono::milliseconds(700));
      kill(pids[1], SIGTERM);
      const ProcessResult result = end();
      EXPECT_EQ(result.status, 0) << result.error;
      EXPECT_EQ(result.error, "");
      EXPECT_LT(seconds, 10);
      EXPECT_NE(result.out.find("stopped by a signal (SIGTERM)"), std::string::npos) << result.out;
      EXPECT_EQ(read_file(folder / "out/metrics.jsonl").find(fmt::format(R"("type":"{}")", one.type)),
                std::string::npos);
    }
}

TEST_F(RanksThatEnd, ARankThatIsKilledEndsAll) {
  for (const size_t victim : {0, 1, 2}) {
    fs::remove_all(folder / "out");
    pids.clear();
    start(3);
    kill(pids[victim], SIGKILL);
    const ProcessResult result = end();
    EXPECT_EQ(result.status, 128 + SIGKILL);
    expect_one_message(result.error, {"train: error: rank " + std::to_string(victim) + " (pid ", "signal 9"});
    EXPECT_LT(seconds, 5);
    goes_on();
  }
}

// In whatever it is then: gathering the weights, writing them, waiting for the others. The checkpoint is not
// blamed.
TEST_F(RanksThatEnd, ARankThatIsKilledInACheckpointEndsAll) {
  const Words settings = with(kEndless, sets({"checkpoint.every=1", "parallel.shard=weights"}));
  for (const int tried : {0, 1, 2, 3, 4, 5}) {
    fs::remove_all(folder / "out");
    pids.clear();
    process.emplace(TRAIN_BINARY, with({"--config", "small.yaml", "--ranks", "3"}, settings),
                    Process::Options{.folder = folder});
    wait_for_steps("out", 5);
    find_ranks(3);
    const size_t victim = static_cast<size_t>(tried % 3);
    std::this_thread::sleep_for(std::chrono::milliseconds(7 * tried));
    kill(pids[victim], SIGKILL);
    const ProcessResult result = end();
    EXPECT_EQ(result.status, 128 + SIGKILL);
    expect_one_message(result.error, {"train: error: rank " + std::to_string(victim) + " (pid ", "signal 9"});
  }
}

TEST_F(RanksThatEnd, ARankThatIsStoppedEndsAll) {
  start(3);
  kill(pids[1], SIGSTOP);
  const ProcessResult result = end();
  EXPECT_EQ(result.status, 1);
  expect_one_message(result.error, {"rank 0: train: error: rank 1 (pid ", "not answered for 2 s", "stopped"});
  EXPECT_LT(seconds, 9);
  goes_on();
}

TEST_F(RanksThatEnd, NothingOutlivesTheLauncher) {
  start(3);
  process->signal(SIGKILL);
  EXPECT_EQ(end().status, -1);
  EXPECT_LT(seconds, 3);
  goes_on();
}

TEST_F(RanksThatEnd, AFullDiskLosesNothingEarlier) {
  trains(by(2, "out", {"train.steps=4"}));
  const ProcessResult result = train(with(by(2, "out", {"train.steps=8"}), {"--resume"}), 32768);
  EXPECT_EQ(result.status, 1);
  expect_one_message(result.error,
                     {"train: error", "step 8 was not written", ".safetensors: File too large", "are whole"});
  EXPECT_FALSE(fs::exists(folder / "out/checkpoints/step_00000008"));
  goes_on();  // whichever rank failed first: what the other one had begun is removed
  for (const auto& entry : fs::directory_iterator(folder / "out/checkpoints"))
    EXPECT_NE(entry.path().extension(), ".unfinished");
}

TEST_F(RanksThatEnd, ALossThatIsNotFiniteIsToldOnce) {
  const ProcessResult result = train(by(3, "out",
                                        {"optimizer.learning_rate=1e30", "optimizer.min_learning_rate=1e30",
                                         "optimizer.warmup_steps=0", "optimizer.max_grad_norm=0"}));
  EXPECT_EQ(result.status, 1);
  const std::string told = "train: error: step ";
  const size_t first = result.error.find(told);
  ASSERT_NE(first, std::string::npos) << result.error;
  EXPECT_EQ(result.error.find("error:", first + told.size()), std::string::npos) << result.error;
  for (const char* part : {"optimizer.learning_rate", "the first bad value is"})
    EXPECT_NE(result.error.find(part), std::string::npos) << result.error;
}

TEST_F(RanksThatEnd, RefusalsAreToldOnce) {
  const auto refuses = [&](const Words& words, const Words& parts) {
    const ProcessResult result = train(words);
    EXPECT_EQ(result.status, 1);
    expect_one_message(result.error, parts);
  };
  refuses(with(by(3, "out"), {"--resume"}), {"nothing to resume"});
  refuses(by(3, "out", {"data.train=missing.txt"}), {"missing.txt"});
  refuses(by(2, "out", {"model.heads=3"}), {"train: error: ", "model.heads"});  // by the launcher itself
  refuses(by(5, "out"), {"5 ranks cannot share", "640 or 800", "--ranks 4"});
  refuses(by(4, "out", {"train.micro_batch=4"}), {"512 or 1024", "--ranks 3"});
  refuses(by(4, "out", {"train.tokens_per_step=64"}), {"to 128", "--ranks 2"});
  EXPECT_FALSE(fs::exists(folder / "out")) << "a refused run left something behind";
  for (const auto& [ranks, tokens] : {std::pair(5, "640"), {5, "800"}, {4, "128"}})
    trains(with(by(ranks, "out", {"train.steps=1", std::string("train.tokens_per_step=") + tokens}),
                {"--overwrite"}));
  refuses(by(3, "out"), {"out holds checkpoints", "--resume", "--overwrite"});
  EXPECT_EQ(train({"--ranks", "0"}).status, 1);
}

// Ranks of two machines, as they believe: with a replica on each, with one of all ranks, and as auto finds
// it. A run that goes on keeps its replicas, and any number of ranks can go on.
TEST_F(RanksByHand, OfTwoMachinesHaveTheLossesOfOne) {
  const Words split = sets({"parallel.shard=weights"});
  const auto run = [&](const std::string& replicas, const Words& more = {}) {
    for (int rank = 3; rank >= 0; --rank)
      start(rank, with(with(split, sets({"parallel.replicas=" + replicas})), more), 4);
    const std::vector<ProcessResult> results = end();
    for (const ProcessResult& result : results) EXPECT_EQ(result.status, 0) << result.out << result.error;
    return results.back().out;  // of rank 0, the last one that was started
  };
  trains(with(by(1, "one"), sets({"train.steps=5"})));
  const std::vector<double> expected = values("one", "loss");
  for (const char* replicas : {"1", "2", "auto"}) {
    SCOPED_TRACE(replicas);
    const std::string said = run(replicas, {"--overwrite"});
    const bool measures = replicas == std::string("auto");
    EXPECT_EQ(said.find("GB/s") != std::string::npos, measures) << said;
    EXPECT_EQ(said.find("parallel.replicas=") != std::string::npos, measures) << said;
    const std::vector<double> ours = values("out", "loss");
    ASSERT_EQ(ours.size(), expected.size());
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_NEAR(ours[i], expected[i], 1e-4 * expected[i]) << "step " << i + 1;
  }
  const std::string said = run("auto", Words{"--resume", "--set", "train.steps=8"});
  EXPECT_EQ(said.find("GB/s"), std::string::npos) << said;
  trains(with(by(1, "out", {"train.steps=10"}), Words{"--resume"}));
}

TEST_F(RanksByHand, TrainAndGoOn) {
  for (const Words& more : {Words{}, Words{"--resume", "--set", "train.steps=8"}}) {
    start(1, more), start(0, more);
    const std::vector<ProcessResult> results = end();
    for (const ProcessResult& result : results) EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_EQ(results[0].out, "") << "only rank 0 speaks";
    EXPECT_NE(results[1].out.find("2 ranks x "), std::string::npos) << results[1].out;
  }
  EXPECT_EQ(values("out", "loss").size(), 8u);
}

TEST_F(RanksByHand, AnotherSettingIsRefusedByItsKey) {
  start(0), start(1, {"--set", "train.seed=7"});
  const std::vector<ProcessResult> results = end();
  EXPECT_EQ(results[0].status, 1);
  expect_one_message(results[0].error, {"train: error: rank 1 (pid ", "another configuration",
                                        "`train.seed: 7` where rank 0 has `train.seed: 1337`"});
  EXPECT_EQ(results[1].status, 3);
  EXPECT_EQ(results[1].error, "");
}

TEST_F(RanksByHand, AnotherSwitchIsRefused) {
  start(0), start(1);
  for (const ProcessResult& result : end()) ASSERT_EQ(result.status, 0) << result.error;
  start(0, {"--resume"}), start(1, {"--overwrite"});
  std::string errors;
  for (const ProcessResult& result : end()) {
    EXPECT_TRUE(result.status == 1 || result.status == 3) << result.status;
    errors += result.error;
  }
  expect_one_message(errors, {"rank 0 has \"--resume\"", "rank 1 has \"--overwrite\"", "the same command"});
  EXPECT_EQ(checkpoints("out"), std::vector{5});
}

TEST_F(RanksByHand, ARankThatNeverComesIsNamed) {
  start(0);
  const ProcessResult result = end()[0];
  EXPECT_EQ(result.status, 1);
  expect_one_message(result.error, {"rank 1", "127.0.0.1:" + std::to_string(port), "3 s"});
}

TEST_F(RanksByHand, APortThatIsTakenIsNamed) {
  const Descriptor other = listen_at("127.0.0.1", port, Reach::kThisMachine);
  start(0);
  const ProcessResult result = end()[0];
  EXPECT_EQ(result.status, 1);
  expect_one_message(result.error,
                     {"cannot listen at 127.0.0.1:" + std::to_string(port), "another MASTER_PORT"});
}

TEST_F(RanksByHand, AnotherNumberOfRanksIsRefused) {
  start(0, {"--ranks", "3"});
  const ProcessResult result = end()[0];
  EXPECT_EQ(result.status, 1);
  expect_one_message(result.error, {"--ranks 3", "started 2"});
}

}  // namespace
}  // namespace tessera::testing
