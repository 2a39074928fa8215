// ./train --plan as its users run it: exit codes, what it prints, what it leaves; and a run that cannot fit.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

struct PlanProgram : TrainProgram {
  PlanProgram()
      : TrainProgram(
            "model:\n  vocab_size: 257\n  context: 64\n  layers: 2\n  heads: 2\n  channels: 128\n"
            "data:\n  train: missing.txt\n"
            "train:\n  folder: out\n  steps: 1\n  tokens_per_step: 512\n") {}
  void SetUp() override { setenv("CUDA_VISIBLE_DEVICES", "", 1); }  // the same with and without a GPU
  void TearDown() override {
    unsetenv("CUDA_VISIBLE_DEVICES");
    EXPECT_FALSE(fs::exists(folder / "out")) << "a plan left something behind";
  }

  ProcessResult plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "--plan");
    return train(arguments);
  }
  nlohmann::json figures(std::vector<std::string> arguments, int status) const {
    arguments.insert(arguments.end(), {"--json", "plan.json"});
    const ProcessResult result = plan(arguments);
    EXPECT_EQ(result.status, status) << result.out << result.error;
    std::ifstream file(folder / "plan.json");
    return nlohmann::json::parse(file);
  }
  static void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
};

TEST_F(PlanProgram, SaysThatItFitsAndExitsWithZero) {
  const ProcessResult gpu = plan({"--device-memory", "80GiB"});
  EXPECT_EQ(gpu.status, 0) << gpu.error;
  expect_parts(gpu.out, {"compute capability 9.0", "bf16", "weights", "gradients", "optimizer", "activations",
                         "attention", "workspace", "data", "all tags", "in a training step", "CUDA context",
                         "80.0 GiB", "fits?    yes"});
  const ProcessResult cpu = plan({});
  EXPECT_EQ(cpu.status, 0) << cpu.error;
  expect_parts(cpu.out, {"CPU", "fp32", "free now", "fits?    yes"});
}

// Kernels that were not written for the GPU are named, with the number that they do not serve.
TEST_F(PlanProgram, SaysWhereSlowerKernelsRun) {
  const ProcessResult usual = plan({"--device-memory", "80GiB"});
  expect_parts(usual.out, {"one kernel a token"});
  const ProcessResult wide = plan(
      {"--device-memory", "80GiB", "--set", "model.channels=384", "--set", "model.dropout.attention=0.1"});
  EXPECT_EQ(wide.status, 0) << wide.error;
  expect_parts(wide.out, {"head dim 192 with dropout", "compute capability 8.0", "up to head dim 128",
                          "separate kernels a token"});
}

TEST_F(PlanProgram, SaysThatItDoesNotFitAndExitsWithTwo) {
  for (const char* device : {"cpu", "auto"}) {
    const ProcessResult result = plan({"--device-memory", "2MiB", "--set", std::string("device=") + device});
    EXPECT_EQ(result.status, 2) << result.out << result.error;
    expect_parts(result.out, {"fits?    no", "too much"});
  }
}

TEST_F(PlanProgram, WithoutAMemorySaysThatNoneWasGiven) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--arch", "80"}, {"--set", "device=cuda"}}) {
    const ProcessResult result = plan(arguments);
    EXPECT_EQ(result.status, 0) << result.error;
    expect_parts(result.out, {"fits?    not known", "--device-memory 80GiB"});
  }
  EXPECT_TRUE(figures({"--arch", "80"}, 0).at("fits").is_null());
}

TEST_F(PlanProgram, WritesItsFigures) {
  const nlohmann::json json = figures({"--device-memory", "1000000000", "--set", "device=cpu"}, 0);
  int64_t sum = 0;
  for (const auto& [tag, bytes] : json.at("bytes_by_tag").items()) sum += bytes.get<int64_t>();
  EXPECT_EQ(json.at("peak_bytes"), sum);
  EXPECT_EQ(json.at("available_bytes"), 1000000000);
  EXPECT_EQ(json.at("fits"), true);
  const nlohmann::json not_fitting =
      figures({"--device-memory", "16MB", "--set", "device=cpu", "--set", "train.micro_batch=8"}, 2);
  EXPECT_EQ(not_fitting.at("fits"), false);
  EXPECT_FALSE(not_fitting.at("advice").empty());
}

// What is offloaded fits the memory that the ranks share, or less is.
TEST_F(PlanProgram, FitsTheHostThatIsGiven) {
  const auto arguments = [](const char* host, std::vector<std::string> more) {
    more.insert(more.end(), {"--device-memory", "80GiB", "--gpus", "2", "--set", "train.micro_batch=1",
                             "--set", "parallel.shard=optimizer", "--host-memory", host});
    return more;
  };
  const std::vector<std::string> offload{"--set", "memory.offload=optimizer"};
  const nlohmann::json large = figures(arguments("512GiB", offload), 0);
  EXPECT_EQ(large.at("host_available_bytes"), int64_t{256} << 30);
  const int64_t each = large.at("host_bytes");
  EXPECT_GT(each, 0);
  const auto bytes = [](int64_t count) { return fmt::format("{}B", count); };
  EXPECT_EQ(figures(arguments(bytes(2 * each).c_str(), offload), 0).at("fits"), true);
  const nlohmann::json small = figures(arguments(bytes(2 * each - 1).c_str(), offload), 2);
  EXPECT_EQ(small.at("fits"), false);
  EXPECT_EQ(small.at("host_available_bytes"), each - 1);
  ASSERT_FALSE(small.at("advice").empty());
  for (const nlohmann::json& one : small.at("advice")) EXPECT_EQ(one.at("fits"), true) << one;
  const ProcessResult result = plan(arguments(bytes(2 * each - 1).c_str(), offload));
  EXPECT_EQ(result.status, 2);
  expect_parts(result.out, {"given by --host-memory, 1/2 of it", "fits?    no",
                            "of the host's memory too much", "memory.offload=none"});
}

// A GPU too small for the optimizer: with a host that has room auto puts it there, and without it fits not.
TEST_F(PlanProgram, AutoFitsTheHostThatIsGiven) {
  const auto plan_with = [&](const char* host, int status) {
    std::vector<std::string> arguments{"--device-memory", "1274MiB",        "--set", "model.channels=512",
                                       "--set",           "model.layers=8", "--set", "memory.offload=auto"};
    if (host) arguments.insert(arguments.end(), {"--host-memory", host});
    return figures(arguments, status);
  };
  const nlohmann::json endless = plan_with(nullptr, 0), none = plan_with("1MiB", 2);
  EXPECT_EQ(endless.at("offload"), "optimizer");
  EXPECT_TRUE(endless.at("host_available_bytes").is_null());
  EXPECT_EQ(plan_with("8GiB", 0).at("offload"), "optimizer");
  EXPECT_EQ(none.at("offload"), "none");
  EXPECT_EQ(none.at("fits"), false);
}

// What a run's ledger measured, over steps, evaluations and samples, is what the plan said.
TEST_F(PlanProgram, IsWhatTheRunMeasures) {
  for (const char* attention : {"naive", "flash"})
    for (const char* sequence : {"16", "64"}) {
      const std::vector<std::string> run{"--set", "device=cpu",
                                         "--set", "data.train=text.txt",
                                         "--set", "train.folder=run",
                                         "--set", "sampling.tokens=60",
                                         "--set", std::string("model.attention=") + attention,
                                         "--set", std::string("train.sequence_length=") + sequence};
      const nlohmann::json planned = figures(run, 0);
      std::vector<std::string> anew = run;
      anew.insert(anew.begin(), "--overwrite");
      anew.insert(anew.end(),
                  {"--set", "train.steps=2", "--set", "evaluation.every=1", "--set", "sampling.every=1"});
      ASSERT_EQ(train(anew).status, 0);
      std::ifstream metrics(folder / "run/metrics.jsonl");
      int64_t measured = 0;
      for (std::string line; std::getline(metrics, line);)
        measured = nlohmann::json::parse(line).value("memory_bytes", measured);
      EXPECT_EQ(planned.at("peak_bytes"), measured) << attention << ", " << sequence << " tokens";
    }
}

// Attention's scratch depends on it: at 64 tokens Hopper's kernels pad rows to tiles twice as tall as
// Ampere's.
TEST_F(PlanProgram, PlansForTheArchThatIsAsked) {
  const auto attention = [&](const char* arch) {
    const nlohmann::json json =
        figures({"--arch", arch, "--device-memory", "80G", "--set", "train.micro_batch=8"}, 0);
    EXPECT_EQ(std::to_string(json.at("arch").get<int>()), arch);
    return json.at("own_peak_by_tag").at("attention").get<int64_t>();
  };
  EXPECT_GT(attention("90"), attention("80"));
}

// The command line that --fit prints is taken as it stands, and is as large as may be.
TEST_F(PlanProgram, FitsAreCommandLinesToCopy) {
  for (const char* what : {"context", "batch"}) {
    const std::vector<std::string> limit{"--device-memory", "64MiB", "--set", "device=cpu"};
    std::vector<std::string> arguments = limit;
    arguments.insert(arguments.end(), {"--fit", what});
    const ProcessResult result = plan(arguments);
    ASSERT_EQ(result.status, 0) << result.out << result.error;
    expect_parts(result.out,
                 {"is the largest", "./train --config small.yaml --set device=cpu --set ", "too much"});
    const nlohmann::json fit = figures(arguments, 0).at("fit");
    std::vector<std::string> copied = limit;
    for (const auto& set : fit.at("set")) {
      copied.insert(copied.end(), {"--set", set.get<std::string>()});
      EXPECT_NE(result.out.find(set.get<std::string>()), std::string::npos);
    }
    EXPECT_EQ(plan(copied).status, 0);
    const int64_t beyond = fit.at("value").get<int64_t>() + fit.at("step").get<int64_t>();
    const std::string key = what == std::string("batch") ? "train.micro_batch=" : "model.context=";
    const int64_t tokens = what == std::string("batch") ? 64 * beyond : beyond;
    copied.insert(copied.end(), {"--set", key + std::to_string(beyond), "--set",
                                 "train.tokens_per_step=" + std::to_string(tokens)});
    EXPECT_EQ(plan(copied).status, 2) << what << " " << beyond;
  }
  EXPECT_EQ(plan({"--fit", "batch", "--device-memory", "1MiB", "--set", "device=cpu"}).status, 2);
}

// A key of the user's that the fit changes is written once, with its new value.
TEST_F(PlanProgram, FitsDoNotRepeatKeys) {
  for (const char* what : {"context", "batch"}) {
    const ProcessResult result = plan(
        {"--device-memory", "64MiB", "--fit", what, "--set", "train.micro_batch=1", "--set", "device=cpu",
         "--set", "train.tokens_per_step=64", "--set", "model.context=64", "--set", "train.micro_batch=1"});
    ASSERT_EQ(result.status, 0) << result.error;
    const size_t at = result.out.find("./train "), end = result.out.find('\n', at);
    std::istringstream words(result.out.substr(at, end - at));
    std::set<std::string> keys;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      if (equals == word.npos) continue;
      EXPECT_TRUE(keys.insert(word.substr(0, equals)).second) << word << "\n" << result.out;
    }
    EXPECT_TRUE(keys.contains("device")) << result.out;
  }
}

TEST_F(PlanProgram, RefusesWhatMakesNoSense) {
  refused({"--plan", "--device-memory", "eighty"}, {"\"eighty\"", "80GiB", "80GiB"});
  refused({"--plan", "--device-memory", "80GiB", "--host-memory", "80"}, {"--host-memory: \"80\"", "80GiB"});
  refused({"--plan", "--host-memory", "80GiB", "--set", "device=cpu"}, {"--host-memory 80GiB", "device=cpu"});
  refused({"--plan", "--arch", "70"}, {"--arch", "found 70", "at least 80"});
  refused({"--plan", "--arch", "90", "--set", "device=cpu"}, {"--arch 90 plans for a GPU", "device is cpu"});
  refused({"--plan", "--fit", "batch", "--arch", "90"}, {"--device-memory"});
  refused({"--plan", "--json", "none/plan.json"}, {"none/plan.json"});
  refused({"--plan", "--device-memory", "8G", "--set", "model.heads=32"}, {"head dim 4 in bf16"});
  refused({"--plan", "--device-memory", "8G", "--set", "device=cpu", "--set", "train.precision=bf16"},
          {"bf16 needs a GPU"});
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--device-memory", "8G"},
        {"--host-memory", "8G"},
        {"--arch", "90"},
        {"--fit", "batch"},
        {"--json", "a"},
        {"--plan", "--resume"},
        {"--plan", "--overwrite"},
        {"--plan", "--print-config"},
        {"--plan", "--fit", "width"},
        {"--plan", "--device-memory", "8G", "--device-memory", "9G"}})
    EXPECT_EQ(train(arguments).status, 1) << arguments.back();
}

// Before its data is read: data.train names a file that is missing.
TEST_F(PlanProgram, ARunThatCannotFitIsRefusedAtOnce) {
  refused({"--set", "device=cpu", "--set", "model.channels=131072", "--set", "model.heads=1024", "--set",
           "model.layers=400", "--set", "train.micro_batch=8"},
          {"does not fit", "weights", "optimizer", "free now", "--set train.micro_batch=1", "too large"});
}

}  // namespace
}  // namespace tessera::testing
