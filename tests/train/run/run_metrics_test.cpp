// What a run writes into metrics.jsonl, and when it evaluates.
#include <nlohmann/json.hpp>

#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct RunMetrics : TrainRanks {
  void SetUp() override {}

  std::vector<nlohmann::ordered_json> lines(const std::string& run) const {
    std::ifstream file(folder / run / "metrics.jsonl");
    std::vector<nlohmann::ordered_json> found;
    for (std::string line; std::getline(file, line);) found.push_back(nlohmann::ordered_json::parse(line));
    return found;
  }
};

TEST_F(RunMetrics, EveryLineTellsItsTypeAndWhereTheRunIs) {
  trains(sets({"train.steps=4", "sampling.every=4", "evaluation.every=4", "checkpoint.every=2"}));
  trains(with(sets({"train.steps=6", "sampling.every=4", "evaluation.every=4", "checkpoint.every=2"}),
              {"--resume"}));
  std::vector<std::string> seen;
  double elapsed = 0;
  for (const auto& line : lines("out")) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : line.items()) keys.push_back(key);
    ASSERT_GE(keys.size(), 7u) << line;
    EXPECT_EQ(std::vector(keys.begin(), keys.begin() + 6),
              (Words{"type", "step", "tokens", "epoch", "elapsed", "time"}));
    const std::string type = line.at("type");
    EXPECT_EQ(line.at("tokens"), line.at("step").get<int64_t>() * 768) << line;
    EXPECT_GT(line.at("epoch").get<double>() + (line.at("step") == 0), 0) << line;
    if (type == "resume") elapsed = 0;  // of another process
    EXPECT_GE(line.at("elapsed").get<double>(), elapsed) << line;
    elapsed = line.at("elapsed");
    seen.push_back(type + " " + line.at("step").dump());
  }
  EXPECT_EQ(seen, (Words{"start 0",      "evaluation 0", "step 1",   "memory 1",     "step 2",
                         "checkpoint 2", "step 3",       "step 4",   "evaluation 4", "sample 4",
                         "checkpoint 4", "stop 4",       "resume 4", "step 5",       "memory 5",
                         "step 6",       "evaluation 6", "sample 6", "checkpoint 6", "stop 6"}));
  const auto first = lines("out").front();
  for (const char* key : {"name", "device", "ranks", "parameters", "tokens_per_step", "sequence_length",
                          "steps", "flops_per_token", "peak_flops", "precision", "attention", "dataset"})
    EXPECT_TRUE(first.contains(key)) << key;
  EXPECT_EQ(first.at("name"), "out");
  EXPECT_EQ(first.at("tokens_per_step"), 768);
  EXPECT_EQ(lines("out")[12].at("checkpoint"), "out/checkpoints/step_00000004");
  EXPECT_GT(lines("out")[3].at("bytes_by_tag").at("weights").get<int64_t>(), 0);
  EXPECT_EQ(lines("out").back().at("reason"), "finished");
}

TEST_F(RunMetrics, AnEvaluationBeforeTheFirstStepChangesNoLoss) {
  trains(sets({"train.steps=10", "train.folder=with"}));
  trains(sets({"train.steps=10", "train.folder=without", "evaluation.at_start=false"}));
  std::vector<std::string> with_it = losses("with");
  ASSERT_TRUE(with_it.front().starts_with("0 validation_loss 5.")) << with_it.front();
  with_it.erase(with_it.begin());
  EXPECT_EQ(with_it, losses("without"));
}

TEST_F(RunMetrics, ARunThatNeverEvaluatesNeedsNoHeldOutText) {
  const Words never = {"evaluation.every=0", "sampling.every=0", "train.steps=2"};
  // Where text is held out by a share, a run that never evaluates trains on the same sequences.
  trains(sets({"train.steps=2", "train.folder=evaluates"}));
  trains(sets(with(never, {"train.folder=never"})));
  EXPECT_EQ(values("never", "loss"), values("evaluates", "loss"));
  trains(sets(with(never, {"train.folder=none", "data.validation=missing.txt"})));
  write("short.txt", std::string(40, 'x'));  // one sequence of 32 tokens, and nothing to hold out
  const ProcessResult result = trains(sets(with(never, {"train.folder=short", "data.train=short.txt"})));
  EXPECT_NE(result.out.find("1 sequences of 32 tokens"), std::string::npos) << result.out;
  refused(sets({"train.folder=refused", "data.train=short.txt"}), {"validation fraction", "too few"});
}

TEST_F(RunMetrics, ClippedHeadsAreCounted) {
  const Words common{"evaluation.every=0", "sampling.every=0", "optimizer.rule=muon", "train.log_every=1",
                     "optimizer.schedule=constant", "optimizer.qk_clip=0.01"};
  const auto of = [&](const Words& more) { return sets(with(common, more)); };
  const ProcessResult first = trains(of({"train.steps=3", "checkpoint.every=3"}));
  EXPECT_NE(first.out.find(" heads clipped"), std::string::npos) << first.out;
  trains(with(of({"train.steps=6"}), {"--resume"}));
  trains(of({"train.steps=6", "train.folder=at_once", "train.inside_every=2"}));
  EXPECT_EQ(losses("out"), losses("at_once"));
  int64_t clipped = 0;
  double largest = 0;
  for (const auto& line : lines("at_once")) {
    if (line.at("type") == "step") {
      clipped += line.at("clipped_heads").get<int64_t>();
      largest = line.at("largest_score");
      EXPECT_EQ(largest > 0.01, line.at("clipped_heads") > 0) << line;
    }
    if (line.at("type") != "inside") continue;
    double of_heads = 0;
    for (size_t layer = 0; layer < line.at("attention_logit").size(); ++layer) {
      double of_layer = 0;
      for (const auto& head : line.at("head_logit").at(fmt::format("layer {}", layer)))
        of_layer = std::max(of_layer, head.get<double>());
      EXPECT_EQ(line.at("attention_logit")[layer].get<double>(), of_layer);
      of_heads = std::max(of_heads, of_layer);
    }
    EXPECT_NEAR(of_heads, largest, 1e-4 * largest);
  }
  EXPECT_GT(clipped, 0);
}

TEST_F(RunMetrics, WhatGoesOnInsideIsRecordedAtItsSteps) {
  const Words common{"evaluation.every=0", "sampling.every=0", "optimizer.max_grad_norm=0.5",
                     "optimizer.schedule=constant"};
  const auto of = [&](const Words& more) { return sets(with(common, more)); };
  trains(of({"train.steps=5", "train.inside_every=2", "checkpoint.every=5"}));
  trains(with(of({"train.steps=8", "train.inside_every=2"}), {"--resume"}));
  trains(of({"train.steps=8", "train.folder=without"}));
  EXPECT_EQ(losses("out"), losses("without")) << "records change no bit";
  std::vector<int> steps;
  double clipped = 0, since = 0;
  for (const auto& line : lines("out")) {
    if (line.at("type") == "resume") clipped = since = 0;
    if (line.at("type") == "step") since += 1, clipped += line.at("grad_norm") > 0.5;
    if (line.at("type") != "inside") continue;
    steps.push_back(line.at("step"));
    EXPECT_EQ(line.at("clipped").get<double>(), clipped / since) << line;
    clipped = since = 0;
    std::vector<std::string> parts;
    for (const auto& [part, norms] : line.at("weight_norm").items()) {
      parts.push_back(part);
      const size_t layers = part == "token_table" || part == "position_table" || part == "norm" ? 1 : 2;
      for (const char* figure : {"weight_norm", "gradient_norm", "update_norm", "update_ratio"}) {
        ASSERT_EQ(line.at(figure).at(part).size(), layers) << part;
        for (const auto& value : line.at(figure).at(part)) EXPECT_GT(value.get<double>(), 0) << part;
      }
      EXPECT_NEAR(line["update_ratio"][part][0].get<double>(),
                  line["update_norm"][part][0].get<double>() / norms[0].get<double>(), 1e-4);
    }
    EXPECT_EQ(parts, (Words{"token_table", "position_table", "norms", "attention.qkv", "attention.out",
                            "mlp.expand", "mlp.contract", "norm"}));
  }
  EXPECT_EQ(steps, (std::vector<int>{2, 4, 6, 8}));
  for (const auto& line : lines("without")) EXPECT_NE(line.at("type"), "inside");
  trains(of({"train.steps=2", "train.folder=fp8", "train.inside_every=2", "train.gemm_dtype=fp8",
             "train.fp8.head=true", "model.layers=3"}));
  const auto fp8 = lines("fp8");
  const auto inside = std::ranges::find(fp8, "inside", [](const auto& line) { return line.at("type"); });
  ASSERT_NE(inside, fp8.end());
  for (const char* figure : {"fp8_saturated_x", "fp8_saturated_dy"}) {
    ASSERT_EQ(inside->at(figure).size(), 5u);
    EXPECT_EQ(inside->at(figure).at("mlp.expand").dump(), "[null,0.0,null]") << "the edges are not in FP8";
    EXPECT_EQ(inside->at(figure).at("head").dump(), "[0.0]");
  }
}

}  // namespace
}  // namespace tessera::testing
