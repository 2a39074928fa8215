// What a run says of itself: statuses at any width, the time that is left, steps that will take long.
#include "train/run/progress.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/data/support.h"
#include "train/config/load_config.h"
#include "train/run/run_log.h"
#include "train/session/from_config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

Interval interval_of(int64_t steps, double loss, double seconds) {
  return {.steps = steps, .loss = loss, .seconds = seconds};
}

std::string status_at(int64_t columns, bool fp8 = false) {
  const StepFigures figures{.step = 12340,
                            .steps = 100000,
                            .interval = interval_of(10, 31.234, 8.15),
                            .grad_norm = 0.523,
                            .learning_rate = 3e-4,
                            .tokens_per_step = 524288,
                            .flops_per_token = 8e8,
                            .peak_flops = 8e14,
                            .fp8 = fp8,
                            .memory_bytes = int64_t{26} << 30,
                            .seconds_left = 71500};
  return fit_status(step_status(figures), columns);
}

TEST(StepStatus, FitsTheTerminal) {
  EXPECT_EQ(
      status_at(120),
      "step 12340/100000 | loss 3.1234 | norm 0.52 | lr 3.00e-04 | 643,298 tok/s | MFU 64.3% | 26.0 GiB | "
      "ETA 19:51:40");
  EXPECT_EQ(status_at(79), "step 12340/100000 | loss 3.1234 | 643,298 tok/s | MFU 64.3% | ETA 19:51:40");
  EXPECT_EQ(status_at(39), "step 12340/100000 | loss 3.1234");
  EXPECT_EQ(status_at(60), "step 12340/100000 | loss 3.1234 | 643,298 tok/s");
}

TEST(StepStatus, SaysWhichPeakMfuIsRelativeTo) {
  EXPECT_NE(status_at(200, /*fp8=*/true).find("| MFU 64.3% of FP8's peak |"), std::string::npos);
}

TEST(TaskStatus, FitsTheTerminal) {
  const TaskFigures task{.where = "step 250/20000",
                         .what = "evaluation",
                         .done = 256,
                         .total = 1024,
                         .unit = "sequences",
                         .seconds = 512};
  EXPECT_EQ(fit_status(task_status(task), 79),
            "step 250/20000 | evaluation 25% | 256 of 1024 sequences | 25:36 left");
  EXPECT_EQ(fit_status(task_status(task), 100),
            "step 250/20000 | evaluation 25% | 256 of 1024 sequences | 2.0 s each | 25:36 left");
  EXPECT_EQ(fit_status(task_status(task), 45), "step 250/20000 | evaluation 25% | 25:36 left");
}

TEST(TimeLeft, CountsEvaluationsSamplesAndCheckpoints) {
  Config config;
  config.train.steps = 25;
  config.evaluation.every = 10;
  config.sampling.every = 0;
  config.checkpoint.every = 5;
  TimeLeft left(config);
  EXPECT_EQ(left.after(1), 0);
  left.took(TimeLeft::kStep, 2);
  EXPECT_DOUBLE_EQ(left.after(1), 24 * 2);
  left.took(TimeLeft::kEvaluation, 100);
  EXPECT_DOUBLE_EQ(left.after(1), 24 * 2 + 3 * 100);  // at 10, 20 and the end
  EXPECT_DOUBLE_EQ(left.after(20), 5 * 2 + 2 * 100);  // that of step 20 comes yet
  EXPECT_DOUBLE_EQ(left.after(21), 4 * 2 + 100);
  EXPECT_DOUBLE_EQ(left.after(25), 100);
  left.took(TimeLeft::kSample, 1000);  // never due
  left.took(TimeLeft::kCheckpoint, 7);
  EXPECT_DOUBLE_EQ(left.after(16), 9 * 2 + 2 * 100 + 2 * 7);  // at 20 and 25, once each
  config.checkpoint.every = 0;                                // only at the end
  TimeLeft at_end(config);
  at_end.took(TimeLeft::kCheckpoint, 7);
  EXPECT_DOUBLE_EQ(at_end.after(3), 7);
}

TEST(FormatAbout, RoundsAsPeopleDo) {
  EXPECT_EQ(format_about(0.2), "1 s");
  EXPECT_EQ(format_about(20.4), "20 s");
  EXPECT_EQ(format_about(21 * 60 + 10), "21 min");
  EXPECT_EQ(format_about(9000), "2.5 h");
}

class RunThatSpeaks : public InTempFolder {
 protected:
  RunThatSpeaks() {
    write("text.txt", std::string(40'000, 'x'));
    write("small.yaml",
          "device: cpu\nmodel:\n  vocab_size: 257\n  context: 32\n  layers: 2\n  heads: 2\n  channels: 32\n"
          "data:\n  train: " +
              (folder_ / "text.txt").string() +
              "\n"
              "train:\n  tokens_per_step: 256\n  log_every: 2\n  steps: 9\n"
              "sampling:\n  every: 0\n");
  }
  Config config(const std::vector<std::string>& overrides = {}) const {
    return load_config(folder_ / "small.yaml", overrides);
  }
  static RunShape shape_of(const Config& config) {
    return {.model = model_config(config),
            .micro_batch = 4,
            .micro_steps = config.train.tokens_per_step / config.sequence_length() / 4,
            .sequence_length = config.sequence_length()};
  }
  std::vector<std::string> notices(const Config& config, double peak_flops) const {
    const RunData data(config, config.data.shifts());
    const DeviceChoice device;
    return slowness_notices({.config = config,
                             .shape = shape_of(config),
                             .device = device,
                             .data = data,
                             .peak_flops = peak_flops,
                             .folder = "out"});
  }
};

TEST_F(RunThatSpeaks, TellsOfAStepOfManyMinutesAndWhatToSet) {
  const Config c = config({"train.tokens_per_step=65536"});
  const double flops = 65536 * shape_of(c).model.flops_per_token(32);
  EXPECT_TRUE(notices(c, flops).empty());
  const std::vector<std::string> slow = notices(c, flops / 0.6 / (21 * 60));  // 21 minutes a step
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_EQ(slow[0],
            "a step of 65,536 tokens will take about 21 min on this device; --set "
            "train.tokens_per_step=1024 makes it 20 s");
  // What is suggested is a run: whole micro-batches, here of 4 sequences.
  const std::vector<std::string> slower =
      notices(config({"train.tokens_per_step=65536", "train.micro_batch=4"}), flops / 0.6 / (100 * 3600));
  ASSERT_EQ(slower.size(), 2u);
  EXPECT_NE(slower[0].find("--set train.tokens_per_step=128 makes it 12 min"), std::string::npos)
      << slower[0];
  EXPECT_NE(slower[1].find("--set evaluation.sequences=1 makes it 59 s, --set evaluation.at_start=false"),
            std::string::npos)
      << slower[1];
}

TEST_F(RunThatSpeaks, AShareOverTheWholePeakRaisesThePeak) {
  const Config c = config();
  const RunData data(c, c.data.shifts());
  const DeviceChoice device;
  const RunShape shape = shape_of(c);
  RunState run;
  run.sequence_length = 32;
  ::testing::internal::CaptureStdout();
  {
    RunLog log(c, run, true);
    log.open_metrics(folder_ / "metrics.jsonl", -1);
    const double flops = 256 * shape.model.flops_per_token(32);  // of a step
    log.begin(
        {.config = c, .shape = shape, .device = device, .data = data, .peak_flops = flops, .folder = "out"},
        {});
    MemoryLedger ledger;
    for (const double seconds : {4.0, 0.5, 1.0, 0.25}) {
      ++run.step;
      run.data_position += 8;
      log.step({.loss = static_cast<double>(run.step), .grad_norm = 1},
               {.counted = 256, .attention_span = 32}, 1e-3, {.all = seconds}, ledger);
    }
  }
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(out.find("notice   step 2 reached"), std::string::npos) << out;
  EXPECT_NE(out.find("notice   step 4 reached"), std::string::npos) << out;
  EXPECT_EQ(out.find("notice   step 3 reached"), std::string::npos) << out;
  // A line for every second step, with the means of both: 2 steps in 4.5 s, and in 1.25 s.
  EXPECT_NE(out.find("step 2/9 | loss 1.5000 |"), std::string::npos) << out;
  EXPECT_NE(out.find("step 4/9 | loss 3.5000 |"), std::string::npos) << out;
  EXPECT_NE(out.find("| 114 tok/s | MFU 22.2% |"), std::string::npos) << out;
  EXPECT_NE(out.find("| 410 tok/s | MFU 40.0% |"), std::string::npos) << out;
  EXPECT_EQ(out.find("step 1/9"), std::string::npos) << out;
  std::vector<double> mfu;
  std::vector<std::string> types;
  std::ifstream file(folder_ / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    types.push_back(json.at("type"));
    if (types.back() == "step") mfu.push_back(json.at("mfu"));
    EXPECT_EQ(json.at("tokens"), json.at("step").get<int64_t>() * 256);
    EXPECT_DOUBLE_EQ(json.at("epoch"), json.at("step").get<double>() * 8 / 1187);
  }
  EXPECT_EQ(mfu, (std::vector<double>{0.25, 1, 0.5, 1}));
  EXPECT_EQ(types, (std::vector<std::string>{"start", "step", "step", "step", "step"}));
}

// Where tokens do not count the line and the metrics say how many do; a step without any is skipped aloud.
TEST_F(RunThatSpeaks, TellsHowManyTokensCount) {
  const Config c = config({"train.steps=4"});
  const RunData data(c, c.data.shifts());
  const DeviceChoice device;
  const RunShape shape = shape_of(c);
  RunState run;
  run.sequence_length = 32;
  ::testing::internal::CaptureStdout();
  {
    RunLog log(c, run, true);
    log.open_metrics(folder_ / "metrics.jsonl", -1);
    const double flops = 256 * shape.flops_of_span(8.0);
    log.begin(
        {.config = c, .shape = shape, .device = device, .data = data, .peak_flops = flops, .folder = "out"},
        {});
    for (const int64_t counted : {128, 64, 0, 256}) {
      ++run.step;
      log.step({.loss = 2, .grad_norm = 1}, {.counted = counted, .attention_span = 8}, 1e-3, {.all = 2},
               MemoryLedger());
    }
    log.evaluation({.loss = 2, .sequences = 3, .counted = 96}, 1, {}, {});
    log.evaluation({.loss = 2, .sequences = 3, .counted = 95}, 1, {}, {});
  }
  const std::string out = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(out.find("step 2/4 | loss 2.0000 | 38% loss tokens | norm 1.00 |"), std::string::npos) << out;
  EXPECT_NE(out.find("| 128 tok/s | MFU 50.0% |"), std::string::npos) << out;
  EXPECT_NE(out.find("step 3: none of its 256 tokens"), std::string::npos) << out;
  EXPECT_NE(out.find("step 4/4 | loss 2.0000 | norm 1.00 |"), std::string::npos) << out;
  EXPECT_NE(out.find(", on 3 sequences\n"), std::string::npos) << out;
  EXPECT_NE(out.find(", on 3 sequences, 95 loss tokens\n"), std::string::npos) << out;
  std::vector<nlohmann::json> loss_tokens;
  std::ifstream file(folder_ / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["type"] != "step" && json["type"] != "evaluation") continue;
    loss_tokens.push_back(json.contains("loss_tokens") ? json["loss_tokens"] : nlohmann::json("all"));
    EXPECT_EQ(json.contains("loss") || json.contains("validation_loss"), loss_tokens.back() != 0);
    if (json.contains("mfu")) {
      EXPECT_DOUBLE_EQ(json["mfu"], 0.5);
    }
  }
  EXPECT_EQ(loss_tokens, (std::vector<nlohmann::json>{128, 64, 0, "all", "all", 95}));
}

}  // namespace
}  // namespace tessera
