// ./bench step --trace: every operation of a step, on tracks whose slices lie side by side.
#include <map>
#include <nlohmann/json.hpp>

#include "tests/process.h"
#include "tests/train_ranks.h"

namespace tessera::testing {
namespace {

using Json = nlohmann::json;

struct StepTraceOfBench : TrainRanks {
  Json traced(int ranks) const {
    const ProcessResult result = run_process(BENCH_BINARY,
                                             {"step", "--config", "small.yaml", "--steps", "1", "--warmup",
                                              "0", "--ranks", std::to_string(ranks), "--trace", "step.json"},
                                             {.folder = folder});
    EXPECT_EQ(result.status, 0) << result.error;
    EXPECT_NE(result.out.find("  trace         step.json: "), std::string::npos) << result.out;
    return Json::parse(read_file(folder / "step.json"))["traceEvents"];
  }
};

TEST_F(StepTraceOfBench, HasEveryOperationOfEveryRank) {
  for (const int ranks : {1, 2}) {
    std::map<std::pair<int, int>, double> ends;  // of the last slice of a track
    std::map<int, std::map<std::string, int>> found;
    for (const Json& event : traced(ranks)) {
      if (event["ph"] != "X") continue;
      double& end = ends[{event["pid"], event["tid"]}];
      EXPECT_GE(event["ts"].get<double>(), end - 0.01) << event;
      end = event["ts"].get<double>() + event["dur"].get<double>();
      const std::string name = event["name"];
      ++found[event["pid"]][name];
      if (name == "attention forward") {
        EXPECT_EQ(event["args"]["where"], fmt::format("block {}, forward", found[event["pid"]][name] - 1));
        EXPECT_EQ(event["args"]["micro-batch"], 1);
        EXPECT_GT(event["args"]["least us"].get<double>(), 0);
        EXPECT_GT(event["args"]["flops"].get<double>(), 0);
      }
      if (name == "reduce-scatter") {
        EXPECT_GT(event["args"]["bytes sent"].get<int64_t>(), 0);
      }
    }
    ASSERT_EQ(found.size(), static_cast<size_t>(ranks));
    for (auto& [rank, names] : found) {
      EXPECT_EQ(names["attention forward"], 2);
      EXPECT_EQ(names["attention backward"], 2);
      EXPECT_GE(names["adamw"], 1);
      EXPECT_EQ(names["attention.qkv, backward"], 2);
      EXPECT_EQ(names["reduce-scatter"] > 0, ranks == 2);
    }
  }
}

TEST_F(StepTraceOfBench, AFileThatCannotBeWritten) {
  const ProcessResult result = run_process(
      BENCH_BINARY, {"step", "--config", "small.yaml", "--trace", "nowhere/step.json"}, {.folder = folder});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.error.find("nowhere/step.json"), std::string::npos) << result.error;
}

}  // namespace
}  // namespace tessera::testing
