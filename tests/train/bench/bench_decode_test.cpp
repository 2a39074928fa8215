// ./bench decode: of a configuration, and of a trained model.
#include <nlohmann/json.hpp>

#include "tests/says.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

struct BenchDecode : TrainProgram {
  BenchDecode()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 96\n  layers: 3\n  heads: 2\n  channels: 48\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 1\n  tokens_per_step: 960\n"
            "evaluation:\n  every: 0\nsampling:\n  every: 0\n") {}
  ProcessResult decode(std::vector<std::string> words) const {
    words.insert(words.begin(), "decode");
    words.insert(words.end(), {"--steps", "2", "--set", "device=cpu", "--json", "decode.json"});
    return run_process(BENCH_BINARY, words, {.folder = folder});
  }
  nlohmann::json figures() const { return nlohmann::json::parse(read_file(folder / "decode.json")); }
};

TEST_F(BenchDecode, MeasuresAConfigurationOrAModel) {
  const ProcessResult of_config = decode({"small.yaml", "--contexts", "40,200", "--batches", "1,3"});
  ASSERT_EQ(of_config.status, 0) << of_config.error;
  const nlohmann::json config = figures();
  EXPECT_EQ(config["model"], "");
  ASSERT_EQ(config["rows"].size(), 4u);

  ASSERT_EQ(train({}).status, 0);
  const ProcessResult of_model = decode({"--model", "out", "--contexts", "40"});
  ASSERT_EQ(of_model.status, 0) << of_model.error;
  const nlohmann::json model = figures();
  EXPECT_EQ(model["model"], "out/checkpoints/step_00000001");
  EXPECT_EQ(model["weight_bytes"], config["weight_bytes"]);
  ASSERT_EQ(model["rows"].size(), 1u);
  EXPECT_EQ(model["rows"][0]["cache_bytes"], config["rows"][0]["cache_bytes"]);
  EXPECT_GT(model["rows"][0]["ms"], 0);
  EXPECT_EQ(model["rows"][0]["kernels"], "separate");

  const ProcessResult by_operation = decode({"small.yaml", "--contexts", "40", "--by-operation"});
  ASSERT_EQ(by_operation.status, 0) << by_operation.error;
  EXPECT_NE(by_operation.out.find("at a time"), std::string::npos) << by_operation.out;
  EXPECT_GT(figures()["rows"][0]["ms_by_operation"].size(), 2u);

  const auto refused = [&](const std::vector<std::string>& words, std::initializer_list<std::string_view> facts) {
    const ProcessResult result = decode(words);
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(says(result.error, facts));
  };
  refused({"--model", "out", "--contexts", "90"},
          {"--contexts 90", "10 tokens", "96", "out/checkpoints/step_00000001", "--steps"});
  refused({"--model", "out", "--config", "small.yaml"}, {"--config", "--model"});
  refused({"--model", "out", "--set", "model.layers=4"}, {"model.layers"});
  refused({"--model", "nothing"}, {"no folder nothing"});
}

}  // namespace
}  // namespace tessera::testing
