// The validation loss by position: against shorter sequences, in the run's output and in its report.
#include "train/run/position_losses.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/train_ranks.h"
#include "tests/train_steps.h"
#include "train/report/run_record.h"

namespace tessera::testing {
namespace {

TEST(PositionLosses, AreMeansOverRangesThatDouble) {
  EXPECT_EQ(position_ends(1), (std::vector<int64_t>{1}));
  EXPECT_EQ(position_ends(8), (std::vector<int64_t>{1, 2, 4, 8}));
  EXPECT_EQ(position_ends(11), (std::vector<int64_t>{1, 2, 4, 8, 11}));
  const std::vector<double> by_position{20, 18, 16, 14, 8, 8, 8, 8, 6, 6, 6};  // of two sequences
  const PositionLosses found =
      position_losses(7, 11, sums_by_range(by_position), sums_by_range(std::vector<double>(11, 2)));
  EXPECT_EQ(found.losses, (std::vector<double>{10, 9, 7.5, 4, 3}));
  EXPECT_EQ(position_table(found),
            "validation loss by position, after step 7\n"
            "  1                     10.0000\n"
            "  2                      9.0000\n"
            "  3 to 4                 7.5000\n"
            "  5 to 8                 4.0000\n"
            "  9 to 11                3.0000\n"
            "  positions 9 to 11 have 1.0000 less loss than 5 to 8");
}

// A causal model computes the same losses for the first tokens of a sequence when the others are not there.
TEST(PositionLosses, AreThoseOfShorterSequences) {
  const ModelConfig model{.vocab_size = 61, .context = 8, .layers = 2, .heads = 2, .channels = 16};
  const std::unique_ptr<Backend> be = make_backend({.device = Device::kCpu});
  std::vector<int32_t> tokens(24), targets(24);
  for (size_t i = 0; i < 24; ++i) {
    tokens[i] = static_cast<int32_t>(i * 37 % 61);
    targets[i] = static_cast<int32_t>(i * 11 % 61);
  }
  const auto evaluate = [&](int64_t T, std::span<double> by_position) {
    std::vector<int32_t> first, first_targets;
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t t = 0; t < T; ++t) {
        first.push_back(tokens[static_cast<size_t>(row * 8 + t)]);
        first_targets.push_back(targets[static_cast<size_t>(row * 8 + t)]);
      }
    Arena arena = Arena::host();
    Session session(*be, arena, {.model = model, .batch = 3, .sequence_length = T});
    session.initialize(1);
    return session.evaluate({.tokens = first, .targets = first_targets}, 3, by_position);
  };
  std::vector<double> sums(8);
  evaluate(8, sums);
  double up_to = 0;
  for (int64_t T = 1; T <= 8; ++T) {
    up_to += sums[static_cast<size_t>(T - 1)];
    const double mean = evaluate(T, {});
    EXPECT_NEAR(up_to / static_cast<double>(3 * T), mean, 1e-5 * mean) << T;  // fp32 losses
  }
}

struct ByPosition : TrainRanks {
  void SetUp() override {}
};

TEST_F(ByPosition, IsInTheOutputTheMetricsAndTheReport) {
  const ProcessResult plain = trains(by(1, "plain"));
  EXPECT_EQ(plain.out.find("by position"), std::string::npos);
  const ProcessResult run = trains(by(1, "out", {"evaluation.by_position=true"}));
  EXPECT_NE(run.out.find("validation loss by position, after step 50\n  1  "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("\n  positions 17 to 32 have "), std::string::npos) << run.out;
  EXPECT_EQ(losses("out"), losses("plain")) << "measuring changes nothing";

  std::ifstream file(folder / "out/metrics.jsonl");
  int evaluations = 0;
  for (std::string text; std::getline(file, text);) {
    const auto line = nlohmann::json::parse(text);
    if (line["type"] != "evaluation") continue;
    ++evaluations;
    EXPECT_EQ(line["position_ends"], (nlohmann::json{1, 2, 4, 8, 16, 32}));
    double sum = 0, before = 0;
    for (size_t i = 0; i < 6; ++i) {
      const double end = line["position_ends"][i];
      sum += line["position_losses"][i].get<double>() * (end - before);
      before = end;
    }
    const double loss = line["validation_loss"];
    EXPECT_NEAR(sum / 32, loss, 1e-12 * loss);  // the same fp32 losses, summed in another order in fp64
  }
  EXPECT_EQ(evaluations, 6);

  const RunRecord record = read_run(folder / "out");
  ASSERT_EQ(record.positions().size(), 2u);
  EXPECT_EQ(record.positions()[0].step, 0);
  EXPECT_EQ(record.positions()[1].step, 50);
  EXPECT_EQ(record.positions()[1].ends, (std::vector<double>{1, 2, 4, 8, 16, 32}));
  const std::string page = read_file(folder / "out/report.html");
  EXPECT_NE(page.find("\"positions\":[{\"step\":0,\"ends\":[1.0,2.0,4.0,8.0,16.0,32.0]"), std::string::npos);
}

TEST_F(ByPosition, IsTheSameOverTwoRanks) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  const Words settings{"evaluation.by_position=true", "train.steps=10"};
  const std::string one = trains(by(1, "one", settings)).out, two = trains(by(2, "two", settings)).out;
  const auto read = [&](const std::string& run) { return read_run(folder / run).positions(); };
  const auto alone = read("one"), shared = read("two");
  ASSERT_EQ(alone.size(), shared.size());
  // Before the first step the weights are the same: batches of other sizes round fp32 losses differently.
  for (size_t i = 0; i < 6; ++i)
    EXPECT_NEAR(alone[0].losses[i], shared[0].losses[i], 1e-5 * alone[0].losses[i]) << i;
  EXPECT_EQ(two.find("by position"), two.rfind("by position")) << "one rank prints";
}

TEST(RunRecordPositions, OthersAreIgnored) {
  RunRecord record;
  for (const char* line : {R"({"type":"evaluation","step":1,"validation_loss":2,"position_ends":[1,2]})",
                           R"({"type":"evaluation","step":2,"validation_loss":2,"position_ends":[1,2],)"
                           R"("position_losses":[1]})",
                           R"({"type":"evaluation","step":3,"validation_loss":2,"position_ends":[0],)"
                           R"("position_losses":[1]})",
                           R"({"type":"evaluation","step":4,"validation_loss":2,"position_ends":"x",)"
                           R"("position_losses":{}})"})
    record.add(line);
  EXPECT_TRUE(record.positions().empty());
  record.add(
      R"({"type":"evaluation","step":5,"validation_loss":2,"position_ends":[1],"position_losses":[null]})");
  ASSERT_EQ(record.positions().size(), 1u);
  EXPECT_TRUE(std::isnan(record.positions()[0].losses[0]));
}

}  // namespace
}  // namespace tessera::testing
