// Runs that are told to stop, whose output nobody reads, and that go on where a signal ended them.
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/base/descriptor.h"
#include "kernels/base/signals.h"
#include "tests/bad_step_run.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

// Steps of many micro-batches of one sequence: as long as a test wants them.
struct Signals : TrainRanks {
  void SetUp() override {}  // most of these runs have one rank, which needs no Gloo

  std::string out_so_far() const { return read_file(folder.string() + "_stdout"); }

  bool wait_for_output(const std::string& text) const {
    return wait_until([&] { return out_so_far().find(text) != std::string::npos; });
  }

  // The lines of a run's metrics of one type.
  std::vector<nlohmann::json> events(const std::string& run, const std::string& type) const {
    std::ifstream file(folder / run / "metrics.jsonl");
    std::vector<nlohmann::json> found;
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.at("type") == type) found.push_back(json);
    }
    return found;
  }

  Words with_config(const Words& words) const { return with({"--config", "small.yaml"}, words); }

  // Settings of a run whose steps take about 5 s on this machine, at this moment: that of the folder `whole`.
  Words steps_of_seconds(const Words& options) const {
    for (int64_t sequences = 300, tries = 1;; ++tries) {
      const Words settings =
          with(sets({"train.tokens_per_step=" + std::to_string(32 * sequences), "train.micro_batch=1",
                     "train.steps=2", "evaluation.every=0", "sampling.every=0", "checkpoint.every=0"}),
               options);
      trains(with(settings, {"--overwrite", "--set", "train.folder=whole"}));
      const double seconds = events("whole", "step").back().at("seconds");
      if (seconds > 3.5 || tries == 5) return settings;
      sequences = static_cast<int64_t>(static_cast<double>(sequences) * 5 / seconds) / 6 * 6;
    }
  }
};

// A step of ten minutes: the signal is answered at once, and long before the step ends.
TEST_F(Signals, AStepOfManyMinutesIsAnnouncedAndStopped) {
  for (const auto& [number, name] :
       {std::pair(SIGTERM, "SIGTERM"), {SIGHUP, "SIGHUP"}, {SIGINT, "SIGINT"}, {SIGUSR1, "SIGUSR1"}}) {
    Process process(TRAIN_BINARY,
                    with_config(with({"--overwrite"},
                                     sets({"train.tokens_per_step=4194304", "train.micro_batch=4",
                                           "model.channels=128", "model.layers=4", "evaluation.every=0"}))),
                    {.folder = folder});
    ASSERT_TRUE(wait_for_output("folder out"));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    process.signal(number);
    EXPECT_TRUE(wait_for_output(std::string(name) + " received: stopping after this micro-batch"));
    const auto asked = std::chrono::steady_clock::now();
    const ProcessResult result = process.finish();
    EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count(), 30);
    EXPECT_EQ(result.status, 0) << result.error;
    for (const char* part : {"notice", "4,194,304 tokens", "--set train.tokens_per_step=",
                             "step 1 is not finished", "stopped by a signal", "nothing to resume"})
      EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
    ASSERT_EQ(events("out", "signal").size(), 1u);
    EXPECT_EQ(events("out", "signal")[0].at("signal"), name);
    EXPECT_EQ(events("out", "stop").back().at("reason"), "signal");
    EXPECT_FALSE(fs::exists(folder / "out/checkpoints"));
  }
}

// The signal arrives in the second of three micro-batches of step 2, which ends later than
// Stopping::kPromptSeconds after the step's beginning.
TEST_F(Signals, ADroppedStepLeavesTheBitsOfARunThatWasNeverStopped) {
  const auto signal_in_step_2 = [updated = false](const AnyOp& op, Backend& be, const Launch&) mutable {
    if (std::holds_alternative<const AdamW*>(op)) updated = true;
    if (!updated || stop_signal() != 0 || be.place().micro_batch != 1) return;
    raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::duration<double>(Stopping::kPromptSeconds + 0.1));
  };
  const auto run = [&](const std::string& name, const BadStepRun& with) {
    EXPECT_EQ(message_of(folder, {.settings = {"train.folder=" + (folder / name).string(), "train.steps=3",
                                               "train.tokens_per_step=192"},
                                  .fault = with.fault,
                                  .options = with.options}),
              "");
  };
  run("whole", {});
  run("out", {.fault = signal_in_step_2});
  forget_stop_signal();
  EXPECT_EQ(checkpoints("out"), std::vector{1});
  EXPECT_EQ(events("out", "step").size(), 1u);
  EXPECT_EQ(events("out", "stop").at(0).at("reason"), "signal");
  run("out", {.options = {.resume = true}});
  EXPECT_EQ(losses("out"), losses("whole"));
}

TEST_F(Signals, RanksDropTheSameStep) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const Words settings = steps_of_seconds({"--set", "train.time_limit=25", "--ranks", "2"});
  Process process(TRAIN_BINARY, with_config(settings), {.folder = folder});
  wait_for_steps("out", 1);
  process.signal(SIGHUP);  // to the launcher, as a terminal that closes does
  const ProcessResult result = process.finish();
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(result.error, "");
  EXPECT_NE(result.out.find("SIGHUP received"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("step 2 is not finished"), std::string::npos) << result.out;
  EXPECT_EQ(checkpoints("out"), std::vector{1});
  trains(with(settings, {"--resume"}));
  EXPECT_EQ(losses("out"), losses("whole"));
}

// nohup stays nohup: what is ignored when the program starts is ignored.
TEST_F(Signals, AnIgnoredHangUpIsIgnored) {
  Process process(TRAIN_BINARY, with_config(sets({"train.steps=60", "evaluation.every=0"})),
                  {.folder = folder, .ignores_hang_up = true});
  wait_for_steps("out", 3);
  process.signal(SIGHUP);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(events("out", "step").size(), 60u);
}

// `./train | tee log`, then Ctrl-C: tee is gone before the run is.
TEST_F(Signals, AReaderThatIsGoneEndsNoRun) {
  Pipe pipe = make_pipe("a log");
  Process process(TRAIN_BINARY,
                  with_config(sets({"train.steps=100000", "optimizer.schedule=constant", "train.log_every=1",
                                    "evaluation.every=0", "sampling.every=0", "checkpoint.every=0"})),
                  {.folder = folder, .out = pipe.write.get()});
  pipe.write.close();
  char buffer[64];
  ASSERT_GT(read(pipe.read.get(), buffer, sizeof buffer), 0);
  pipe.read.close();
  wait_for_steps("out", 5);
  process.signal(SIGINT);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.status, 0) << result.error;
  expect_one_message(result.error, {"train: notice", "standard output"});
  ASSERT_EQ(checkpoints("out").size(), 1u);
  EXPECT_EQ(events("out", "step").size(), static_cast<size_t>(checkpoints("out")[0]));
  EXPECT_EQ(events("out", "stop")[0].at("reason"), "signal");
}

TEST_F(Signals, AFullDiskUnderTheLogEndsNoRun) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  Process process(TRAIN_BINARY, with_config(sets({"train.steps=3"})), {.folder = folder, .out = full});
  close(full);
  const ProcessResult result = process.finish();
  EXPECT_EQ(result.status, 0) << result.error;
  expect_one_message(result.error, {"write to standard output"});
  EXPECT_EQ(checkpoints("out"), std::vector{3});
}

TEST_F(Signals, ClosedStreamsPutNothingIntoFiles) {
  const ProcessResult result =
      run_process(TRAIN_BINARY, with_config(sets({"train.steps=3", "train.log_every=1"})),
                  {.folder = folder, .closed_streams = true});
  EXPECT_EQ(result.status, 0);
  EXPECT_EQ(events("out", "step").size(), 3u);  // every line is parsed
  for (const char* file : {"config.yaml", "metrics.jsonl"})
    EXPECT_EQ(read_file(folder / "out" / file).find("parameters:"), std::string::npos) << file;
}

// By default the signal of a file's size limit ends a program without a word.
TEST_F(Signals, AFileThatCannotGrowIsAnErrorWithAMessage) {
  const Words words = with_config(sets({"train.steps=100000", "evaluation.every=0", "checkpoint.every=0"}));
  const ProcessResult result = run_shell("ulimit -f 32; trap - XFSZ; exec \"$0\" \"$@\"",
                                         with({TRAIN_BINARY}, words), {.folder = folder});
  EXPECT_EQ(result.status, 1);
  expect_one_message(result.error, {"train: error", "out/metrics.jsonl"});
  std::ifstream file(folder / "out/metrics.jsonl");
  for (std::string line; std::getline(file, line);)
    EXPECT_TRUE(nlohmann::json::accept(line)) << "a torn line: " << line;
}

TEST_F(Signals, AStopInTheLastSampleLeavesWhatResumes) {
  const Words settings =
      sets({"train.steps=4", "evaluation.every=4", "sampling.every=4", "checkpoint.every=4"});
  trains(with(settings, sets({"train.folder=whole"})));
  Process process(TRAIN_BINARY, with_config(with(settings, sets({"sampling.tokens=100000000"}))),
                  {.folder = folder});
  ASSERT_TRUE(wait_for_output("step 4: validation loss"));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  process.signal(SIGTERM);
  const ProcessResult result = process.finish();
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("SIGTERM received: stopping after this token"), std::string::npos) << result.out;
  EXPECT_TRUE(events("out", "sample").empty());
  EXPECT_EQ(checkpoints("out"), std::vector{4});
  // What is missing is done; then nothing is left.
  trains(with(settings, {"--resume"}));
  EXPECT_EQ(losses("out"), losses("whole"));
  const ProcessResult again = trains(with(settings, {"--resume"}));
  EXPECT_NE(again.out.find("the run is at step 4"), std::string::npos) << again.out;
  EXPECT_EQ(losses("out"), losses("whole"));
}

// As after a signal in the last evaluation, and so for any number of ranks.
TEST_F(Signals, AnEvaluationThatIsMissingAtTheEndIsMadeByAResume) {
  std::string why_not;
  const int most = can_communicate(Device::kCpu, why_not) ? 2 : 1;
  for (int ranks = 1; ranks <= most; ++ranks) {
    const std::string run = "run_" + std::to_string(ranks);
    trains(by(ranks, run, {"train.steps=4"}));
    const std::vector<std::string> whole = losses(run);
    const std::string metrics = read_file(folder / run / "metrics.jsonl");
    write(run + "/metrics.jsonl", metrics.substr(0, metrics.find(R"({"type":"evaluation","step":4)")));
    EXPECT_LT(losses(run).size(), whole.size());
    trains(with(by(ranks, run, {"train.steps=4"}), {"--resume"}));
    EXPECT_EQ(losses(run), whole);
  }
}

TEST_F(Signals, ARunThatDivergesSaysSoInItsMetrics) {
  const ProcessResult result = train(sets({"optimizer.learning_rate=1e30", "optimizer.min_learning_rate=1e30",
                                           "optimizer.warmup_steps=0", "optimizer.max_grad_norm=0"}));
  EXPECT_EQ(result.status, 1);
  ASSERT_EQ(events("out", "stop").size(), 1u);
  EXPECT_EQ(events("out", "stop")[0].at("reason"), "error");
  EXPECT_NE(events("out", "stop")[0].at("message").get<std::string>().find("learning_rate"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::testing
