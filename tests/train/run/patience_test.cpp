// Early stopping: when a run of the train program ends, and what it leaves.
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/train_ranks.h"
#include "train/run/run_state.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

TEST(NoteEvaluation, CountsThoseSinceTheBest) {
  RunState run;
  const auto note = [&](int64_t step, double loss) {
    run.step = step;
    return note_evaluation(run, loss);
  };
  EXPECT_FALSE(note(0, 1.0));  // before the first step: no checkpoint, and no count
  EXPECT_EQ(run.evaluations_since_best, 0);
  EXPECT_FALSE(note(1, NAN));
  EXPECT_FALSE(note(2, INFINITY));
  EXPECT_FALSE(run.best);
  EXPECT_EQ(run.evaluations_since_best, 2);
  EXPECT_TRUE(note(3, 2.0));
  EXPECT_EQ(run.evaluations_since_best, 0);
  EXPECT_FALSE(note(4, 2.0));  // equal is not lower
  EXPECT_FALSE(note(5, NAN));
  EXPECT_FALSE(note(6, -INFINITY));
  EXPECT_EQ(run.evaluations_since_best, 3);
  EXPECT_EQ(run.best->step, 3);
  EXPECT_TRUE(note(7, 1.9));
  EXPECT_EQ(run.evaluations_since_best, 0);
}

// The learning rate is so large that the validation loss falls, rises for a while, and falls again.
struct Patience : TrainRanks {
  void SetUp() override {}  // most of these runs have one rank, which needs no Gloo

  static Words restless(const std::string& run, const Words& more = {}) {
    return sets(with({"train.folder=" + run, "train.steps=40", "optimizer.learning_rate=1e-1",
                      "optimizer.min_learning_rate=1e-1", "evaluation.every=2", "checkpoint.every=6",
                      "checkpoint.keep_best=true"},
                     more));
  }
  static std::string patience(int64_t evaluations) { return "train.patience=" + std::to_string(evaluations); }

  // Where a run of these validation losses, one before the first step, is out of patience
  struct End {
    int step = 0, best = 0;
  };
  static End expected_end(const std::vector<double>& validation_losses, int64_t patience) {
    End end;
    double lowest = INFINITY;
    for (size_t i = 1; i < validation_losses.size(); ++i) {
      end.step = static_cast<int>(2 * i);
      if (validation_losses[i] < lowest) {
        lowest = validation_losses[i];
        end.best = end.step;
      } else if (end.step - end.best == 2 * patience) {
        break;
      }
    }
    return end;
  }

  nlohmann::json last_line(const std::string& run) const {
    const std::string metrics = read_file(folder / run / "metrics.jsonl");
    return nlohmann::json::parse(metrics.substr(metrics.rfind('\n', metrics.size() - 2) + 1));
  }
  std::string checkpoint_of(const std::string& run, int step) const {
    return fmt::format("{}/checkpoints/step_{:08}", run, step);
  }
  // What `run` wrote is the beginning of what `whole` did, and its last sample.
  void expect_begins(const std::string& whole, const std::string& run, int steps) const {
    std::vector<std::string> ours = losses(run), all = losses(whole);
    ASSERT_NE(ours.back().find(std::to_string(steps) + " sample "), std::string::npos) << ours.back();
    ours.pop_back();
    ASSERT_LT(ours.size(), all.size());
    all.resize(ours.size());
    EXPECT_EQ(ours, all);
    EXPECT_EQ(values(run, "loss").size(), static_cast<size_t>(steps));
  }
};

TEST_F(Patience, EndsARunAndNamesItsBestStep) {
  trains(restless("whole"));
  const std::vector<double> validation = values("whole", "validation_loss");
  const End early = expected_end(validation, 2), later = expected_end(validation, 4);
  ASSERT_LT(early.step, later.best) << "the loss has to rise for two evaluations, and fall again";

  const ProcessResult result = trains(restless("early", {patience(2)}));
  expect_begins("whole", "early", early.step);
  for (const std::string& part :
       {fmt::format("stopped after step {}: 2 evaluations", early.step),
        fmt::format("loss was {:.4f}, after step {}: {}", validation[early.best / 2], early.best,
                    checkpoint_of("early", early.best)),
        fmt::format("to train from it: ./train --config finetune.yaml \\\n  --set train.init_from={} \\\n"
                    "  --set data.train=text.txt --set data.validation_fraction=0.05 \\\n"
                    "  --set train.tokens_per_step=768\n",
                    checkpoint_of("early", early.best))})
    EXPECT_NE(result.out.find(part), std::string::npos) << result.out << "\nlacks: " << part;
  EXPECT_EQ(last_line("early").at("type"), "stop");
  EXPECT_EQ(last_line("early").at("reason"), "patience");
  EXPECT_EQ(last_line("early").at("step"), early.step);
  const std::vector<int> kept = checkpoints("early");
  EXPECT_EQ(kept.back(), early.step);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), early.best), 1);
  const auto state =
      nlohmann::json::parse(read_file(folder / checkpoint_of("early", early.step) / "state.json"));
  EXPECT_EQ(state.at("evaluations_since_best"), 2);
  EXPECT_EQ(state.at("best").at("step"), early.best);

  // The printed command trains.
  const size_t begin = result.out.find("--config finetune.yaml"), end = result.out.find("memory at");
  Words command;
  std::istringstream words(result.out.substr(begin, end - begin));
  for (std::string word; words >> word;)
    if (word != "\\") command.push_back(word);
  const ProcessResult tuned =
      run_process(TRAIN_BINARY, with(command, sets({"train.folder=tuned", "train.steps=1", "device=cpu"})),
                  {.folder = folder});
  EXPECT_EQ(tuned.status, 0) << tuned.error;

  // A run that has ended stays so; with more patience it is the run that had it from the start.
  const ProcessResult again = trains(with({"--resume"}, restless("early", {patience(2)})));
  EXPECT_NE(again.out.find("train.patience is 2"), std::string::npos) << again.out;
  expect_begins("whole", "early", early.step);
  trains(restless("later", {patience(4), "sampling.every=0"}));
  EXPECT_EQ(values("later", "loss").size(), static_cast<size_t>(later.step));
  trains(with({"--resume"}, restless("early", {patience(4), "sampling.every=0"})));
  EXPECT_EQ(values("early", "validation_loss"), values("later", "validation_loss"));
  EXPECT_EQ(values("early", "loss"), values("later", "loss"));
}

// A run that resumes from any of its checkpoints ends where it would have ended.
TEST_F(Patience, CountsOnThroughAResume) {
  trains(restless("whole", {patience(2), "checkpoint.every=1", "checkpoint.keep=0"}));
  const std::vector<std::string> whole = losses("whole");
  const std::vector<int> all = checkpoints("whole");
  ASSERT_GE(all.size(), 6u);
  for (size_t kept = 1; kept < all.size(); ++kept) {
    const std::string run = "from_" + std::to_string(all[kept - 1]);
    fs::copy(folder / "whole", folder / run, fs::copy_options::recursive);
    for (size_t i = kept; i < all.size(); ++i) fs::remove_all(folder / checkpoint_of(run, all[i]));
    trains(with({"--resume"}, restless(run, {patience(2), "checkpoint.every=1", "checkpoint.keep=0"})));
    EXPECT_EQ(losses(run), whole) << run;
  }
}

// As after a signal in that evaluation: its step is saved, and the evaluation belongs to the resumed run.
TEST_F(Patience, AnEvaluationThatAResumeRepeatsIsCountedOnce) {
  trains(restless("whole"));
  const std::vector<double> validation = values("whole", "validation_loss");
  const int best = expected_end(validation, 1).best, next = best + 2;
  ASSERT_GT(validation[next / 2], validation[best / 2]);
  trains(restless("run", {patience(9), "train.steps=" + std::to_string(next)}));
  const std::string line = fmt::format(R"({{"type":"evaluation","step":{})", next);
  const std::string metrics = read_file(folder / "run/metrics.jsonl");
  write("run/metrics.jsonl", metrics.substr(0, metrics.find(line)));
  const fs::path saved = folder / checkpoint_of("run", next);
  auto state = nlohmann::json::parse(read_file(saved / "state.json"));
  ASSERT_EQ(state.at("evaluations_since_best"), 1);
  state["evaluations_since_best"] = 0;
  state["format"] = "tessera checkpoint 1";  // without checksums
  fs::remove(saved / "checksums.json");
  write(checkpoint_of("run", next) + "/state.json", state.dump());
  for (int i = 0; i < 2; ++i) {
    trains(with({"--resume"}, restless("run", {patience(9), "train.steps=" + std::to_string(next)})));
    EXPECT_EQ(nlohmann::json::parse(read_file(saved / "state.json")).at("evaluations_since_best"), 1) << i;
  }
}

TEST_F(Patience, OfMoreEvaluationsThanTheRunHasChangesNothing) {
  trains(restless("whole"));
  trains(restless("patient", {patience(1000)}));
  EXPECT_EQ(losses("patient"), losses("whole"));
  EXPECT_EQ(last_line("patient").at("reason"), "finished");
}

TEST_F(Patience, RanksEndTogether) {
  std::string why_not;
  if (!can_communicate(Device::kCpu, why_not)) GTEST_SKIP() << why_not;
  trains(with({"--ranks", "2"}, restless("whole")));
  const End end = expected_end(values("whole", "validation_loss"), 2);
  ASSERT_LT(end.step, 40);
  trains(with({"--ranks", "2"}, restless("early", {patience(2)})));
  expect_begins("whole", "early", end.step);
  EXPECT_EQ(last_line("early").at("reason"), "patience");
  const ProcessResult again = trains(with({"--ranks", "2", "--resume"}, restless("early", {patience(2)})));
  EXPECT_NE(again.out.find("nothing is left"), std::string::npos) << again.out;
}

TEST_F(Patience, NeedsEvaluationsAndTheBestCheckpoint) {
  refused(sets({patience(3)}),
          {"train.patience 3", "checkpoint.keep_best false", "checkpoint.keep_best=true"});
  refused(sets({patience(3), "evaluation.every=0"}),
          {"train.patience 3", "needs evaluations", "evaluation.every 0"});
  refused(sets({patience(-1)}), {"train.patience", "at least 0", "found -1"});
}

TEST_F(Patience, EveryRunThatEvaluatesNamesItsBestStep) {
  const ProcessResult result = trains(sets({"train.steps=20", "checkpoint.every=0"}));
  EXPECT_NE(result.out.find("after step 20: out/checkpoints/step_00000020\nto train from it: ./train "),
            std::string::npos)
      << result.out;
  const ProcessResult lost =
      trains(with({"--overwrite"},
                  restless("out", {"checkpoint.keep_best=false", "checkpoint.keep=1", "train.steps=6"})));
  EXPECT_NE(lost.out.find("after step 2; checkpoint.keep_best=true"), std::string::npos) << lost.out;
  EXPECT_EQ(lost.out.find("train from it"), std::string::npos) << lost.out;
}

}  // namespace
}  // namespace tessera::testing
