// train.gemm_dtype=fp8 in the train program: what it prints, refuses, saves and resumes.
#include <nlohmann/json.hpp>

#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct Fp8Run : TrainProgram {
  Fp8Run()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 3\n  heads: 2\n  channels: 32\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 8\n  tokens_per_step: 256\n  micro_batch: 4\n  matmul: fp8\n"
            "  fp8: {edges: true, head: true}\n"
            "optimizer:\n  learning_rate: 5e-3\n  min_learning_rate: 5e-4\n  warmup_steps: 2\n"
            "evaluation:\n  every: 4\n  sequences: 8\nsampling:\n  every: 0\n"
            "checkpoint:\n  every: 4\n  keep: 0\n") {}

  std::string trains(const std::vector<std::string>& arguments) {
    const ProcessResult result = train(arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    return result.out;
  }
  fs::path checkpoint(int step) const { return folder / "out/checkpoints" / fmt::format("step_{:08}", step); }
  nlohmann::json state(int step) const {
    return nlohmann::json::parse(read_file(checkpoint(step) / "state.json"));
  }
};

TEST_F(Fp8Run, ResumesWithTheSameBits) {
  for (const std::string scaling : {"delayed", "current"}) {
    const std::vector<std::string> words{"--set", "train.fp8.scaling=" + scaling};
    std::vector<std::string> start = words, again = words;
    start.push_back("--overwrite"), again.push_back("--resume");
    const std::string out = trains(start);
    EXPECT_NE(out.find("blocks 0 to 2 of 3, and the logits; " + scaling), std::string::npos) << out;
    const std::vector<std::string> whole = losses("out");
    std::vector<std::string> files;
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"})
      files.push_back(read_file(checkpoint(8) / name));
    EXPECT_EQ(state(4).contains("fp8_scales"), scaling == "delayed");
    if (scaling == "delayed") {
      EXPECT_EQ(state(4)["fp8_scales"].size(), 13u);
    }
    fs::remove_all(checkpoint(8));
    trains(again);
    EXPECT_EQ(losses("out"), whole);
    size_t i = 0;
    for (const char* name : {"model.safetensors", "optimizer.safetensors", "state.json"})
      EXPECT_TRUE(read_file(checkpoint(8) / name) == files[i++]) << scaling << " " << name;
  }
}

// The next phase of a context_schedule has the scales of the one before, as a run that resumes there has.
TEST_F(Fp8Run, ChangesItsSequenceLength) {
  const std::vector<std::string> phases{"--set", "train.context_schedule=0:16,4:32"};
  std::vector<std::string> again = phases;
  again.push_back("--resume");
  trains(phases);
  const std::vector<std::string> whole = losses("out");
  const std::string weights = read_file(checkpoint(8) / "model.safetensors");
  EXPECT_EQ(state(4)["fp8_scales"].size(), 13u);
  fs::remove_all(checkpoint(8));
  trains(again);
  EXPECT_EQ(losses("out"), whole);
  EXPECT_TRUE(read_file(checkpoint(8) / "model.safetensors") == weights);
}

TEST_F(Fp8Run, ResumesFromARunWithoutIt) {
  trains({"--set", "train.gemm_dtype=bf16", "--set", "train.fp8.edges=false", "--set", "train.fp8.head=false",
          "--set", "train.steps=4"});
  EXPECT_FALSE(state(4).contains("fp8_scales"));
  const std::string out = trains({"--resume"});
  EXPECT_NE(out.find("train.gemm_dtype: bf16, now fp8"), std::string::npos) << out;
  EXPECT_TRUE(state(8).contains("fp8_scales"));
}

TEST_F(Fp8Run, IsResumedWithoutIt) {
  trains({"--set", "train.steps=4"});
  trains({"--resume", "--set", "train.gemm_dtype=bf16", "--set", "train.fp8.edges=false", "--set",
          "train.fp8.head=false"});
  EXPECT_FALSE(state(8).contains("fp8_scales"));
}

TEST_F(Fp8Run, RefusesScalesThatAreNone) {
  trains({"--set", "train.steps=4"});
  fs::remove(checkpoint(4) / "checksums.json");
  const nlohmann::json whole = state(4);
  for (const nlohmann::json& bad : {nlohmann::json("none"), nlohmann::json{{"head", {1, 2, 3}}},
                                    nlohmann::json{{"head", {1, 200}}}, nlohmann::json{{"head", {0.5, 1}}}}) {
    nlohmann::json changed = whole;
    changed["fp8_scales"] = bad;
    changed["format"] = "tessera checkpoint 1";  // which has no checksums
    write("out/checkpoints/step_00000004/state.json", changed.dump());
    refused({"--resume"}, {"state.json", "\"fp8_scales\"", "expected"});
  }
}

TEST_F(Fp8Run, IsPlanned) {
  const std::vector<std::string> gpu{"--plan", "--set", "device=cuda", "--device-memory", "80GiB"};
  std::vector<std::string> hopper = gpu, ampere = gpu;
  hopper.insert(hopper.end(), {"--arch", "90"}), ampere.insert(ampere.end(), {"--arch", "80"});
  const std::string out = trains(hopper);
  EXPECT_NE(out.find("blocks 0 to 2 of 3"), std::string::npos) << out;
  refused(ampere, {"train.gemm_dtype=fp8", "8.9"});
}

}  // namespace
}  // namespace tessera::testing
