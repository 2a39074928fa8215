// Runs over packed documents: the loss is one over all tokens that count, whatever rank computes them.
#include <nlohmann/json.hpp>

#include "tests/tolerances.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

struct DocumentsOfARun : TrainRanks {
  void SetUp() override {
    TrainRanks::SetUp();
    if (IsSkipped()) return;
    // One document of 5 tokens and one of 20 to 26 fill a sequence of 32, with padding after them.
    std::string text;
    for (int i = 0; i < 300; ++i) {
      const int length = i % 2 == 0 ? 5 : 20 + i % 7;
      text +=
          "{\"text\":\"" + std::string(static_cast<size_t>(length), static_cast<char>('a' + i % 5)) + "\"}\n";
    }
    write("text.jsonl", text);
    const ProcessResult prepared =
        run_process(PREPARE_BINARY, {"--input", "text.jsonl", "--tokenizer", "bytes", "--output", "packed"},
                    {.folder = folder});
    ASSERT_EQ(prepared.status, 0) << prepared.error;
  }

  static Words packed(const Words& more = {}) {
    return with({"data.train=packed", "data.documents=mask", "train.steps=20", "evaluation.by_position=true"},
                more);
  }

  // Lines of a type, in order
  std::vector<nlohmann::json> lines(const std::string& run, const std::string& type) const {
    std::vector<nlohmann::json> found;
    std::ifstream file(folder / run / "metrics.jsonl");
    for (std::string text; std::getline(file, text);)
      if (auto line = nlohmann::json::parse(text); line["type"] == type) found.push_back(line);
    return found;
  }

  void expect_near(const std::vector<double>& ours, const std::vector<double>& theirs) const {
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i)
      EXPECT_NEAR(ours[i], theirs[i], tolerance::kLossesOfRanks * theirs[i]) << "number " << i + 1;
  }
};

TEST_F(DocumentsOfARun, RanksAndMicroBatchesShareOneLoss) {
  const ProcessResult one = trains(by(1, "one", packed()));
  const std::vector<nlohmann::json> steps = lines("one", "step"), evaluations = lines("one", "evaluation");
  ASSERT_EQ(steps.size(), 20u);
  for (const nlohmann::json& step : steps) {
    ASSERT_TRUE(step.contains("loss_tokens")) << step;
    EXPECT_LT(step["loss_tokens"], 768);
    EXPECT_GT(step["loss_tokens"], 384);
  }
  EXPECT_NE(one.out.find("% loss tokens | norm"), std::string::npos) << one.out;
  EXPECT_NE(one.out.find(" loss tokens\n"), std::string::npos) << one.out;
  EXPECT_LT(steps.back()["loss"], 0.7 * steps.front()["loss"].get<double>()) << "nothing was learned";

  const struct {
    std::string run;
    int ranks;
    Words settings;
  } runs[] = {{"two", 2, {}},
              {"two_whole", 2, {"parallel.shard=none"}},
              {"two_in_four", 2, {"train.micro_batch=3", "parallel.shard=weights"}},
              {"three", 3, {"train.micro_batch=2"}}};
  for (const auto& [run, ranks, settings] : runs) {
    SCOPED_TRACE(run);
    trains(by(ranks, run, packed(settings)));
    expect_near(values(run, "loss"), values("one", "loss"));
    expect_near(values(run, "validation_loss"), values("one", "validation_loss"));
    const std::vector<nlohmann::json> theirs = lines(run, "step");
    for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(theirs[i]["loss_tokens"], steps[i]["loss_tokens"]);
  }
  trains(by(1, "small", packed({"train.micro_batch=1", "train.recompute=block"})));
  expect_near(values("small", "loss"), values("one", "loss"));

  // A mean over the tokens that count. So it is for each range of positions, whose sums add up to the whole.
  const nlohmann::json& last = evaluations.back();
  EXPECT_EQ(lines("two", "evaluation").back()["loss_tokens"], last["loss_tokens"]);
  const auto by_range = last["position_losses"], theirs = lines("two", "evaluation")[0]["position_losses"];
  for (size_t i = 0; i < by_range.size(); ++i)
    EXPECT_NEAR(theirs[i].get<double>() / evaluations[0]["position_losses"][i].get<double>(), 1,
                tolerance::kLossesOfRanks);
}

}  // namespace
}  // namespace tessera::testing
