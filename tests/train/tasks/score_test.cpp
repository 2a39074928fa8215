// The scores of choices: transformers' to rounding, each in one batch, within the
// memory of an evaluation; and accuracies with their confidence intervals.
#include "train/tasks/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/tokenizers/load_tokenizer.h"
#include "tests/data/support.h"
#include "tests/reference_folder.h"
#include "tests/tolerances.h"
#include "train/session/memory_plan.h"
#include "train/tasks/read_task.h"

namespace tessera::testing {
namespace {

constexpr int64_t kSequenceLength = 64;  // as make_task_reference.py has it

struct ScoreChoices : ::testing::Test {
  std::filesystem::path folder = fixture("tasks");
  std::unique_ptr<Tokenizer> tokenizer = load_tokenizer(fixture("tokenizers/gpt2.json").string());
  std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  nlohmann::json reference = nlohmann::json::parse(std::ifstream(folder / "reference.json"))["files"];

  SessionShape shape(int64_t batch) const {
    return {.model = read_model_config(folder).model, .batch = batch, .sequence_length = kSequenceLength};
  }
  Task task(const std::string& file) const { return read_task((folder / file).string(), tokenizer.get()); }
  std::vector<double> scores(const Task& of, int64_t batch, bool documents = false) {
    SessionShape with = shape(batch);
    with.documents = documents;
    Session session(*be, arena, with);
    load_weights(folder, session);
    return all_scores(session, of);
  }
  static std::vector<double> all_scores(Session& session, const Task& of) {
    const TaskBatches batches(of, session.shape());
    std::vector<double> scores(static_cast<size_t>(batches.choices()));
    for (int64_t batch = 0; batch < batches.count(); ++batch) batches.score(session, batch, scores);
    return scores;
  }
  static void expect_scores(const nlohmann::json& wanted, const std::vector<double>& found) {
    size_t at = 0;
    for (const auto& item : wanted)
      for (const double score : item) {
        ASSERT_LT(at, found.size());
        EXPECT_NEAR(found[at], score, tolerance::kCpuAgainstPyTorch * std::abs(score)) << "choice " << at;
        ++at;
      }
    EXPECT_EQ(at, found.size());
  }
};

TEST_F(ScoreChoices, AgreesWithTransformers) {
  int64_t items = 0, right = 0;
  for (const std::string name : {"hellaswag", "arc", "choices"}) {
    SCOPED_TRACE(name);
    const Task of = task(name + ".jsonl");
    const std::vector<double> found = scores(of, 8);
    expect_scores(reference[name]["scores"], found);
    const TaskResult result = task_result(of, found);
    EXPECT_EQ(result.sum.right, reference[name]["right"]["sum"]);
    EXPECT_EQ(result.by_token.right, reference[name]["right"]["token"]);
    EXPECT_EQ(result.by_byte.value().right, reference[name]["right"]["byte"]);
    items += result.items;
    right += result.sum.right;
  }
  EXPECT_EQ(items, 200);
  EXPECT_TRUE(0 < right && right < items);
}

TEST_F(ScoreChoices, OfLlmCsFileAreThoseOfItsText) {
  const Task text = task("hellaswag.jsonl"), tokens = task("hellaswag.bin");
  ASSERT_EQ(text.items.size(), tokens.items.size());
  for (size_t i = 0; i < text.items.size(); ++i) {
    EXPECT_EQ(text.items[i].context, tokens.items[i].context);
    EXPECT_EQ(text.items[i].answer, tokens.items[i].answer);
    for (size_t c = 0; c < text.items[i].choices.size(); ++c)
      EXPECT_EQ(text.items[i].choices[c].tokens, tokens.items[i].choices[c].tokens);
  }
  const std::vector<double> found = scores(tokens, 8);
  EXPECT_EQ(found, scores(text, 8));
  const TaskResult result = task_result(tokens, found);
  EXPECT_EQ(result.by_token.right, reference["hellaswag"]["right"]["token"]);
  EXPECT_FALSE(result.by_byte.has_value());
}

TEST_F(ScoreChoices, KeepsTheEndOfAContextThatIsTooLong) {
  const Task of = task("hellaswag.jsonl");
  EXPECT_GT(cut_contexts(of, kSequenceLength), 10);
  EXPECT_LT(cut_contexts(of, kSequenceLength), 320);
  EXPECT_EQ(cut_contexts(of, 100'000), 0);
}

TEST_F(ScoreChoices, DoesNotDependOnTheBatchNorOnDocuments) {
  const Task of = task("arc.jsonl");
  const std::vector<double> one = scores(of, 1);
  for (const std::vector<double>& other : {scores(of, 5), scores(of, 16), scores(of, 8, true)})
    for (size_t i = 0; i < one.size(); ++i)
      EXPECT_NEAR(one[i], other[i], tolerance::kCpuAgainstPyTorch * std::abs(one[i])) << i;
}

TEST_F(ScoreChoices, EachIsInOneBatch) {
  const Task of = task("hellaswag.jsonl");
  Session session(*be, arena, shape(4));
  load_weights(folder, session);
  const TaskBatches batches(of, session.shape());
  EXPECT_EQ(batches.choices(), 320);
  EXPECT_GT(batches.count(), 15);
  std::vector<bool> is_scored(320);
  for (int64_t batch = 0, before = 0; batch < batches.count(); ++batch) {
    EXPECT_EQ(batches.choices_before(batch), before);
    std::vector<double> scores(320);
    batches.score(session, batch, scores);
    for (size_t i = 0; i < scores.size(); ++i) {
      if (scores[i] == 0) continue;
      EXPECT_FALSE(is_scored[i]) << "choice " << i << " was scored twice";
      is_scored[i] = true;
      ++before;
    }
  }
  EXPECT_EQ(std::ranges::count(is_scored, true), 320);
}

TEST_F(ScoreChoices, NeedsNoMoreMemoryThanAnEvaluation) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const int64_t batch : {1, 3, 8}) {
      SessionShape with = shape(batch);
      with.attention = attention;
      const MemoryPlan plan = plan_session(with, be->traits());
      Arena own = Arena::host();
      Session session(*be, own, with);
      load_weights(folder, session);
      for (const char* file : {"hellaswag.jsonl", "arc.jsonl", "choices.jsonl"})
        all_scores(session, task(file));
      EXPECT_LE(own.ledger().peak_bytes(), plan.ledger.peak_bytes()) << batch;
    }
}

TEST_F(ScoreChoices, LossesRefuseMoreThanABatch) {
  Session session(*be, arena, shape(2));
  const Sequences sequences{
      .tokens = std::vector<int32_t>(130), .targets = std::vector<int32_t>(130), .documents = {}};
  EXPECT_THROW(session.losses(sequences, 2, 65), Error);
  EXPECT_THROW(session.losses(sequences, 130, 1), Error);
}

TEST(Accuracy, HasWilsonsInterval) {
  // The formula in fp64, computed by another program
  const Accuracy some{.right = 15, .items = 20}, none{.right = 0, .items = 10};
  EXPECT_NEAR(some.low(), 0.5312991, 1e-6);
  EXPECT_NEAR(some.high(), 0.8881383, 1e-6);
  EXPECT_NEAR(none.low(), 0, 1e-12);
  EXPECT_NEAR(none.high(), 0.2775328, 1e-6);
}

TEST(Accuracy, IsOfTheLargestOfScores) {
  Task task{.name = "t", .path = "t.jsonl", .format = TaskFormat::kChoices, .items = {}};
  const auto add = [&](int64_t answer) {
    task.items.push_back({.context = {1},
                          .choices = {{.tokens = {1, 2, 3, 4}, .bytes = 2}, {.tokens = {1}, .bytes = 8}},
                          .answer = answer});
  };
  add(0), add(1), add(0);
  // By sum: the second, the second, the first of equals; by token: the first each time; by byte: the second
  const std::vector<double> scores{-4, -2, -4, -2, -2, -2};
  const TaskResult result = task_result(task, scores);
  EXPECT_EQ(result.sum.right, 2);
  EXPECT_EQ(result.by_token.right, 2);
  EXPECT_EQ(result.by_byte->right, 1);
  EXPECT_EQ(result.choices, 6);
  EXPECT_NEAR(result.chance, 0.5, 1e-12);
  EXPECT_EQ(task_line(result), "t 66.7% (20.8 to 93.9), by token 66.7%, by byte 33.3%, on 3 items");
  EXPECT_EQ(to_json(result)["accuracy"], 2.0 / 3);
  EXPECT_EQ(to_json(result)["accuracy_interval"].size(), 2u);
  EXPECT_EQ(task_table({result}),
            "task    items  chance  accuracy                by token                by byte\n"
            "t           3   50.0%  66.7% (20.8 to 93.9)    66.7% (20.8 to 93.9)    33.3% (6.1 to 79.2)\n"
            "accuracy in percent, with its 95% confidence interval (Wilson)");
}

}  // namespace
}  // namespace tessera::testing
