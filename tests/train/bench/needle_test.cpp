// The needle test: its texts, its scores, and the program on a model that knows one fact.
#include "train/bench/needle.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/tokenizers/load_tokenizer.h"
#include "tests/train/plot/svg_support.h"
#include "tests/train_program.h"
#include "train/parallel/make_communicator.h"

namespace tessera::testing {
namespace {

const std::string kFiller = "One sentence. Another line\nand a third, which is longer than the others.\n";

struct Needle : ::testing::Test {
  std::unique_ptr<Tokenizer> bytes = load_tokenizer("bytes");

  std::string text(const NeedleTexts& texts, int64_t context, double depth, int64_t needle = 0) const {
    return bytes->decode(texts.make(context, depth, needle).tokens);
  }
  // "The secret number of Lima is 48213": the end of the text
  static std::string fact_of(const std::string& text) { return text.substr(text.rfind("\n") + 1); }
};

TEST_F(Needle, StandsAtItsDepth) {
  const NeedleTexts texts(*bytes, kFiller, 5);
  const std::string fact = fact_of(text(texts, 300, 0));
  for (const int64_t context : {120, 300, 1000})
    for (const double depth : {0.0, 0.3, 0.5, 1.0}) {
      const std::string found = text(texts, context, depth);
      EXPECT_EQ(std::ssize(found), context);
      EXPECT_EQ(fact_of(found), fact);
      const std::string line = "\n" + fact + ".\n";
      const size_t at = found.find(line);
      ASSERT_NE(at, std::string::npos) << found;
      const double filler = static_cast<double>(found.size() - line.size() - fact.size() - 1);
      EXPECT_LE(static_cast<double>(at), depth * filler + 1);
      EXPECT_GE(static_cast<double>(at), (depth - 0.02) * filler - 1);
      EXPECT_EQ(found.find(fact, at + line.size()), found.size() - fact.size());
    }
  // Between lines, where one ends near
  const std::string cut = text(texts, 10000, 0.5);
  const size_t at = cut.find("\nThe secret");
  EXPECT_TRUE(cut[at - 1] == '\n' || cut[at - 1] == '.') << cut.substr(at - 20, 40);
}

TEST_F(Needle, DependsOnTheSeedAndTheNumberAlone) {
  const NeedleTexts one(*bytes, kFiller, 5), same(*bytes, kFiller, 5), other(*bytes, kFiller, 6);
  EXPECT_EQ(text(one, 400, 0.3), text(same, 400, 0.3));
  EXPECT_NE(fact_of(text(one, 400, 0.3)), fact_of(text(other, 400, 0.3)));
  std::set<std::string> facts;
  for (int64_t needle = 0; needle < 20; ++needle) facts.insert(fact_of(text(one, 400, 0.3, needle)));
  EXPECT_EQ(facts.size(), 20u);
  const NeedleText made = one.make(400, 0.3, 0);
  EXPECT_EQ(made.answer, 6);  // a blank and five digits
  EXPECT_THROW(one.make(one.shortest(0) - 1, 0.3, 0), Error);
  EXPECT_EQ(std::ssize(one.make(one.shortest(0), 0.3, 0).tokens), one.shortest(0));
  EXPECT_THROW(NeedleTexts(*bytes, "", 5), Error);
}

TEST_F(Needle, IsFoundIfEveryTokenIsTheMostProbable) {
  const std::vector<int32_t> answer{2, 0};
  const auto score = [&](std::vector<float> logits, int64_t known = 3) {
    return score_answer(logits, answer, known);
  };
  const NeedleScore sure = score({0, 0, 50, 50, 0, 0});
  EXPECT_TRUE(sure.found);
  EXPECT_NEAR(sure.log_probability, 0, 1e-9);
  EXPECT_FALSE(score({0, 0, 1, 0, 1, 0}).found);
  EXPECT_FALSE(score({1, 0, 0, 1, 0, 0}).found);
  EXPECT_NEAR(score({0, 0, 0, 0, 0, 0}).log_probability, -std::log(3), 1e-6);
  const double first = 2 - std::log(std::exp(1) + std::exp(-1) + std::exp(2)), second = -std::log(3);
  EXPECT_NEAR(score({1, -1, 2, 7, 7, 7}).log_probability, (first + second) / 2, 1e-6);
  EXPECT_TRUE(score({1, -1, 2, 7, 7, 7}).found);  // the first of equals
  // A token that the tokenizer does not have is never decoded.
  EXPECT_TRUE(score({0, 0, 1, 9, 2, 0, 0, 9}).found);
}

TEST_F(Needle, PrintsAndDrawsAGrid) {
  NeedleResults results{.contexts = {1024, 4096}, .depths = needle_depths(3), .cells = {}};
  EXPECT_EQ(results.depths, (std::vector<double>{0, 0.5, 1}));
  EXPECT_EQ(needle_depths(1), std::vector<double>{0.5});
  for (const int64_t context : results.contexts)
    for (const double depth : results.depths) {
      NeedleCell cell{.context = context, .depth = depth};
      cell.add({.found = true, .log_probability = -0.5});
      cell.add({.found = context == 1024, .log_probability = -1.5});
      results.cells.push_back(cell);
    }
  EXPECT_EQ(needle_table(results),
            "found, and the mean log-probability of a token of the answer, by depth and context:\n"
            "  depth             1,024             4,096\n"
            "     0%      2/2   -1.000      1/2   -1.000\n"
            "    50%      2/2   -1.000      1/2   -1.000\n"
            "   100%      2/2   -1.000      1/2   -1.000\n"
            "    all      6/6   -1.000      3/6   -1.000\n");
  const auto json = to_json(results);
  EXPECT_EQ(json["cells"].size(), 6u);
  EXPECT_EQ(json["cells"][3]["context"], 4096);
  const std::string svg = to_svg(results);
  expect_sound_svg(svg);
  for (const char* part : {">4,096<", ">50%<", ">2/2<", ">1/2<"})
    EXPECT_NE(svg.find(part), std::string::npos);
}

struct NeedleProgram : TrainProgram {
  NeedleProgram()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 160\n  layers: 1\n  heads: 2\n  channels: 48\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 250\n  tokens_per_step: 960\n"
            "optimizer:\n  learning_rate: 1e-2\n  min_learning_rate: 1e-3\n  warmup_steps: 5\n"
            "evaluation:\n  every: 0\nsampling:\n  every: 0\ncheckpoint:\n  every: 0\n") {}
  ProcessResult needle(std::vector<std::string> words) const {
    words.insert(words.begin(), "needle");
    return run_process(BENCH_BINARY, words, {.folder = folder});
  }
};

// A model that was trained on nothing but the fact of the first needle finds this one, and not the second.
TEST_F(NeedleProgram, FindsWhatAModelKnows) {
  const auto bytes = load_tokenizer("bytes");
  const std::string first = bytes->decode(NeedleTexts(*bytes, "x", 1337).make(160, 0, 0).tokens);
  const std::string fact = first.substr(first.rfind("\n") + 1);
  std::string text;
  while (text.size() < 40000) text += fact + ".\n";
  write("text.txt", text);
  ASSERT_EQ(train({}).status, 0);
  const std::string checkpoint = "out/checkpoints/step_00000250";
  const std::vector<std::string> words{checkpoint, "--contexts", "112,160",    "--depths",
                                       "3",        "--needles",  "2",          "--filler",
                                       "text.txt", "--json",     "needle.json"};
  const ProcessResult result = needle(words);
  ASSERT_EQ(result.status, 0) << result.error;
  const auto json = nlohmann::json::parse(read_file(folder / "needle.json"));
  ASSERT_EQ(json["cells"].size(), 6u);
  for (const auto& cell : json["cells"]) {
    EXPECT_EQ(cell["found"], 1) << cell;
    EXPECT_EQ(cell["total"], 2);
  }
  ASSERT_EQ(needle(words).status, 0);
  EXPECT_EQ(nlohmann::json::parse(read_file(folder / "needle.json")), json);
  std::string why_not;
  if (can_communicate(Device::kCpu, why_not)) {
    for (const char* ranks : {"2", "5"}) {  // of 12 texts
      std::vector<std::string> shared = words;
      shared.insert(shared.end(), {"--ranks", ranks});
      const ProcessResult several = needle(shared);
      ASSERT_EQ(several.status, 0) << several.error;
      EXPECT_NE(several.out.find(std::string(ranks) + " ranks x "), std::string::npos) << several.out;
      EXPECT_EQ(nlohmann::json::parse(read_file(folder / "needle.json")), json);
    }
  }

  // 20 and 40 hold no needle.
  ASSERT_EQ(needle({checkpoint, "--depths", "1", "--needles", "2", "--json", "needle.json"}).status, 0);
  const auto by_default = nlohmann::json::parse(read_file(folder / "needle.json"))["cells"];
  ASSERT_EQ(by_default.size(), 2u);
  EXPECT_EQ(by_default[0]["context"], 80);
  EXPECT_EQ(by_default[1]["context"], 160);

  const auto refused = [&](std::vector<std::string> more, const char* part) {
    more.insert(more.begin(), checkpoint);
    const ProcessResult bad = needle(more);
    EXPECT_EQ(bad.status, 1);
    EXPECT_NE(bad.error.find(part), std::string::npos) << bad.error;
  };
  refused({"--contexts", "161"}, "at most 160 tokens");
  refused({"--contexts", "40"}, "up to 76 tokens");
  refused({"--filler", "none.txt"}, "none.txt");
}

}  // namespace
}  // namespace tessera::testing
