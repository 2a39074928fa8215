// The trace of a step on a GPU: CUPTI's kernels and copies belong to the operations that launched them.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/cuda/train_on_gpu.h"

namespace tessera::testing {
namespace {

using Json = nlohmann::json;

struct CudaStepTrace : TrainOnGpu {
  CudaStepTrace()
      : TrainOnGpu(
            "device: cuda\n"
            "model:\n  vocab_size: 257\n  context: 128\n  layers: 2\n  heads: 2\n  channels: 128\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  tokens_per_step: 1024\n  micro_batch: 8\n") {}
};

TEST_F(CudaStepTrace, KernelsBelongToOperations) {
  const ProcessResult result = run_process(
      BENCH_BINARY, {"step", "--config", "small.yaml", "--gpus", "1", "--steps", "2", "--trace", "step.json"},
      {.folder = folder});
  if (result.error.find("needs NVIDIA's CUPTI") != std::string::npos) GTEST_SKIP() << result.error;
  ASSERT_EQ(result.status, 0) << result.error;
  std::map<std::string, int> operations, kernels_of;
  int kernels = 0, alone = 0;
  const Json trace = Json::parse(read_file(folder / "step.json"));
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const Json& args = event["args"];
    if (args.contains("least us")) {
      ++operations[event["name"]];
    } else if (args.contains("operation")) {
      ++kernels, ++kernels_of[args["operation"]];
    } else {
      ++kernels, ++alone;
    }
  }
  EXPECT_EQ(operations["attention forward"], 2);
  EXPECT_EQ(operations["attention backward"], 2);
  int gemms = 0;
  for (const auto& [name, count] : operations)
    if (name.ends_with(", forward")) gemms += count;
  EXPECT_GE(gemms, 2 * 4);
  EXPECT_GE(operations["adamw"], 1);
  for (const auto& [name, count] : operations) EXPECT_GE(kernels_of[name], count) << name;
  EXPECT_GT(kernels, 40);
  EXPECT_LT(alone, kernels / 4) << "copies of inputs and results belong to no operation, kernels do";
}

}  // namespace
}  // namespace tessera::testing
