// Runs of several ranks: they learn what one rank learns, go on as any other number of ranks, and report.
#include <nlohmann/json.hpp>

#include "tests/tolerances.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct RanksOfARun : TrainRanks {
  void expect_near(const std::vector<double>& ours, const std::vector<double>& theirs, double tolerance,
                   const std::string& what) const {
    ASSERT_EQ(ours.size(), theirs.size()) << what;
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_NEAR(ours[i], theirs[i], tolerance * theirs[i]) << what << ", number " << i + 1;
  }

  // The losses of `run` are those of `one` from their beginning to their end.
  void expect_the_losses_of(const std::string& one, const std::string& run) const {
    const std::vector<double> ours = values(run, "loss"), theirs = values(one, "loss");
    ASSERT_FALSE(ours.empty()) << run;
    EXPECT_NEAR(ours[0], theirs[0], tolerance::kFirstLossOfRanks * theirs[0]) << run;
    expect_near(ours, theirs, tolerance::kLossesOfRanks, run + ": loss");
    expect_near(values(run, "validation_loss"), values(one, "validation_loss"), tolerance::kLossesOfRanks,
                run + ": validation loss");
  }

  // A copy of a run that was cut off at step 25.
  void cut(const std::string& run, const std::string& copy) const {
    fs::copy(folder / run, folder / copy, fs::copy_options::recursive);
    fs::remove_all(folder / copy / "checkpoints/step_00000050");
  }
};

TEST_F(RanksOfARun, AnyNumberLearnsTheSame) {
  trains(by(1, "one"));
  const std::vector<double> one = values("one", "loss");
  ASSERT_EQ(one.size(), 50u);
  ASSERT_EQ(values("one", "validation_loss").size(), 1u + 5);  // one before the first step
  EXPECT_LT(one.back(), 0.5 * one.front()) << "nothing was learned";
  const struct {
    int ranks;
    Words settings;
  } runs[] = {{2, {}},
              {2, {"parallel.shard=none"}},
              {2, {"parallel.shard=weights"}},
              {3, {"parallel.shard=gradients", "train.micro_batch=2"}},
              {3, {"parallel.shard=weights", "train.micro_batch=1", "train.recompute=block"}},
              {3, {"train.micro_batch=1"}},
              {4, {"train.micro_batch=2", "train.recompute=block"}}};
  for (const auto& [ranks, settings] : runs) {
    std::string name = "by_" + std::to_string(ranks);
    for (const std::string& setting : settings) name += "_" + setting;
    const ProcessResult result = trains(by(ranks, name, settings));
    EXPECT_NE(result.out.find(std::to_string(ranks) + " ranks x "), std::string::npos) << result.out;
    expect_the_losses_of("one", name);
  }
}

TEST_F(RanksOfARun, AnyNumberDropsTheSame) {
  const Words drops{"model.dropout=0.1", "train.steps=10"};
  trains(by(1, "one", drops));
  trains(by(1, "small", with(drops, {"train.micro_batch=4"})));
  trains(by(2, "two", with(drops, {"train.micro_batch=3", "train.recompute=block"})));
  for (const char* run : {"small", "two"}) expect_the_losses_of("one", run);
}

TEST_F(RanksOfARun, TwiceTheSameBits) {
  for (const char* shard : {"none", "optimizer", "gradients", "weights"}) {
    const Words settings{std::string("parallel.shard=") + shard};
    const Words anew = with(settings, {"train.steps=12"});
    trains(with(by(3, "first", anew), {"--overwrite"}));
    trains(with(by(3, "second", anew), {"--overwrite"}));
    EXPECT_EQ(losses("first"), losses("second")) << settings[0];
  }
}

TEST_F(RanksOfARun, GoOnAsAnyOtherNumber) {
  trains(by(4, "four"));
  for (const int ranks : {1, 2}) {
    const std::string name = "four_to_" + std::to_string(ranks);
    cut("four", name);
    trains(with(by(ranks, name), {"--resume"}));
    expect_the_losses_of("four", name);
  }
  // With another split than before
  cut("four", "four_to_3");
  trains(with(by(3, "four_to_3", {"parallel.shard=weights"}), {"--resume"}));
  expect_the_losses_of("four", "four_to_3");
  trains(by(3, "split", {"parallel.shard=weights"}));
  cut("split", "split_to_1");
  trains(with(by(1, "split_to_1"), {"--resume"}));
  expect_the_losses_of("split", "split_to_1");
  cut("four", "again");
  trains(with(by(4, "again"), {"--resume"}));
  EXPECT_EQ(losses("again"), losses("four"));
  // The micro-batch that one rank chose, all 24 sequences of a step, is not for four.
  trains(by(1, "one"));
  cut("one", "one_to_4");
  trains(with(by(4, "one_to_4"), {"--resume"}));
  expect_the_losses_of("one", "one_to_4");
}

// What auto finds is said; a run that goes on keeps the split that decides its bits.
TEST_F(RanksOfARun, FindWhatIsAuto) {
  const Words free{"parallel.shard=auto", "train.recompute=auto", "memory.offload=auto"};
  const ProcessResult fresh = trains(by(2, "found", with(free, {"train.steps=3"})));
  for (const char* word :
       {"parallel.shard=optimizer", "train.recompute=none", "memory.offload=none", "train.micro_batch=12"})
    EXPECT_NE(fresh.out.find(word), std::string::npos) << word << "\n" << fresh.out;
  trains(by(2, "split", {"parallel.shard=weights"}));
  cut("split", "split_again");
  const ProcessResult again = trains(with(by(2, "split_again", free), {"--resume"}));
  EXPECT_NE(again.out.find("parallel.shard=weights"), std::string::npos) << again.out;
  EXPECT_EQ(losses("split_again"), losses("split"));
}

TEST_F(RanksOfARun, ReportTheMemoryOfEach) {
  const ProcessResult result = trains(with(by(3, "out", {"train.steps=3"}), {"--memory-profile", "profile"}));
  EXPECT_NE(result.out.find("by rank:"), std::string::npos) << result.out;
  for (const char* rank : {"rank_0", "rank_1", "rank_2"})
    for (const char* file : {"memory.html", "memory.json", "memory_trace.json"})
      EXPECT_TRUE(fs::exists(folder / "profile" / rank / file)) << rank << " " << file;
  // One writer, and nothing on stdout but its words.
  EXPECT_EQ(result.out.find("rank 1:"), std::string::npos) << result.out;
  EXPECT_EQ(values("out", "loss").size(), 3u);
}

// gpt2_small, as shipped.
struct PlanOfRanks : TrainRanks {
  void SetUp() override { setenv("CUDA_VISIBLE_DEVICES", "", 1); }  // the same with and without a GPU
  void TearDown() override { unsetenv("CUDA_VISIBLE_DEVICES"); }

  ProcessResult plan(const Words& words) const {
    const ProcessResult result = run_process(
        TRAIN_BINARY, with({"--config", "gpt2_small.yaml", "--plan", "--json", "plan.json"}, words),
        {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result;
  }
  nlohmann::json figures() const { return nlohmann::json::parse(read_file(folder / "plan.json")); }
};

TEST_F(PlanOfRanks, EachHoldsItsPartOfTheOptimizer) {
  const Words gpu{"--arch", "90", "--device-memory", "80GiB"};
  const auto optimizer = [&](const char* ranks, const Words& more) {
    const ProcessResult result = plan(with(with({"--ranks", ranks}, gpu), more));
    EXPECT_EQ(result.out.find("of each rank") != std::string::npos, ranks != std::string("1")) << result.out;
    EXPECT_EQ(figures().at("ranks").dump(), ranks);
    return figures().at("own_peak_by_tag").at("optimizer").get<double>();
  };
  const double one = optimizer("1", {}), eight = optimizer("8", {});
  EXPECT_NEAR(8 * eight / one, 1, 1e-3);
  EXPECT_EQ(optimizer("8", {"--set", "parallel.shard=none"}), one);
  const auto weights = [&](const char* shard) {
    plan(with({"--ranks", "8", "--set", std::string("parallel.shard=") + shard}, gpu));
    return figures().at("own_peak_by_tag").at("weights").get<double>();
  };
  // An eighth, two blocks that are whole at a time, and the table
  const double block = 12.0 * 768 * 768 * 2, table = 50304.0 * 768 * 2;
  EXPECT_NEAR(weights("weights"), weights("optimizer") / 8 + 2 * block + table, 0.05 * weights("optimizer"));
}

TEST_F(PlanOfRanks, FitsAreCommandLinesToCopy) {
  const Words eight{"--ranks", "8", "--arch", "90", "--device-memory", "80GiB"};
  for (const char* what : {"batch", "context"}) {
    const ProcessResult result = plan(with(eight, {"--fit", what}));
    EXPECT_NE(result.out.find(" --ranks 8\n"), std::string::npos) << result.out;
    Words copied;
    const auto found = figures();
    for (const auto& set : found.at("fit").at("set")) copied.push_back(set);
    plan(with(eight, sets(copied)));
  }
}

TEST_F(PlanOfRanks, OnTheCpuTheyShareTheMachine) {
  const ProcessResult result = plan(
      {"--set", "device=cpu", "--ranks", "4", "--set", "train.micro_batch=1", "--device-memory", "64GiB"});
  EXPECT_NE(result.out.find("--device-memory, 1/4"), std::string::npos) << result.out;
  EXPECT_EQ(figures().at("available_bytes").get<int64_t>(), int64_t{16} << 30);
}

TEST_F(RanksOfARun, BenchTellsWhatTheyGain) {
  const ProcessResult result = run_process(BENCH_BINARY,
                                           {"step", "--config", "small.yaml", "--ranks", "2", "--steps", "3",
                                            "--warmup", "1", "--json", "step.json"},
                                           {.folder = folder});
  ASSERT_EQ(result.status, 0) << result.error;
  for (const char* part :
       {"2 ranks x ", "scaling", "communication", "split: optimizer", "one rank alone"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  const auto json = nlohmann::json::parse(read_file(folder / "step.json"));
  EXPECT_EQ(json.at("ranks"), 2);
  for (const char* key :
       {"step_ms", "step_ms_alone", "exposed_communication_ms", "tokens_per_second", "tflops"})
    EXPECT_GT(json.at(key).get<double>(), 0) << key;
  EXPECT_NEAR(json.at("tokens_per_second").get<double>(),
              2 * 32 * json.at("micro_batch").get<double>() / json.at("step_ms").get<double>() * 1000,
              1e-6 * json.at("tokens_per_second").get<double>());
}

TEST_F(RanksOfARun, BenchRefusesOnce) {
  const ProcessResult result =
      run_process(BENCH_BINARY, {"step", "--config", "small.yaml", "--ranks", "5"}, {.folder = folder});
  EXPECT_EQ(result.status, 1);
  expect_one_message(result.error, {"bench: error", "5 ranks"});
}

}  // namespace
}  // namespace tessera::testing
