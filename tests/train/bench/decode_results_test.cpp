#include "train/bench/decode_results.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "train/bench/attention_sweep.h"

namespace tessera {
namespace {

AttnDecodeProblem problem(int64_t batch, int64_t capacity, int64_t heads, int64_t kv_heads, int head_dim) {
  return {.struct_size = sizeof(AttnDecodeProblem),
          .dtype = ATTN_BF16,
          .batch = batch,
          .capacity = capacity,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = 1};
}

TEST(DecodeResults, BytesAreThoseOfTheCacheAndOneRowOfQueries) {
  const attention::Traffic t = attention::decode_traffic(problem(1, 8192, 32, 8, 128), 8192);
  EXPECT_EQ(t.written, 32 * 128 * 2);
  EXPECT_EQ(t.read, 2 * 8192.0 * 8 * 128 * 2 + 32 * 128 * 2 + 4);
  EXPECT_EQ(t.loaded, t.read);
  // A group of 16 takes two turns: the second reads from L2.
  const attention::Traffic wide = attention::decode_traffic(problem(2, 1000, 16, 1, 64), 500);
  EXPECT_EQ(wide.loaded - wide.read, 2 * 2 * 500.0 * 64 * 2);
}

TEST(DecodeResults, TheShareIsTheTimeOfTheBytesOverTheTime) {
  const DecodeResults results{
      .device = "a GPU",
      .cudnn = "9.19.0",
      .bandwidth = 3e12,
      .repeats = 11,
      .cells = {
          {.problem = problem(16, 1024, 32, 8, 128),
           .ms = 0.020,
           .cudnn_ms = 0.025,
           .why_no_cudnn = "",
           .bytes = 30e6},
          {.problem = problem(1, 64, 4, 4, 256), .ms = 0.005, .why_no_cudnn = "not served", .bytes = 3e6}}};
  EXPECT_DOUBLE_EQ(share_of_bandwidth(results.cells[0], results.bandwidth), 0.5);
  EXPECT_EQ(table_of(results),
            "                                                            MB        us  bound us   share      "
            " cudnn us\n"
            "16 x 1024 cached tokens, 32 heads of 128, group 4        30.00     20.00     10.00     50%      "
            "    25.00\n"
            "1 x 64 cached tokens, 4 heads of 256                      3.00      5.00      1.00     20%     "
            "not served\n");
  const nlohmann::ordered_json json = to_json(results);
  EXPECT_EQ(json["cells"][0]["share_of_bandwidth"], 0.5);
  EXPECT_EQ(json["cells"][0]["kv_heads"], 8);
  EXPECT_FALSE(json["cells"][1].contains("cudnn_ms"));
  DecodeResults on_cpu = results;
  on_cpu.bandwidth = 0;
  EXPECT_EQ(table_of(on_cpu).find('%'), std::string::npos);
  EXPECT_FALSE(to_json(on_cpu)["cells"][0].contains("share_of_bandwidth"));
}

TEST(DecodeResults, ProblemsAreBatchesTimesContextsTimesHeadDims) {
  BenchAttentionOptions options;
  options.decode = true;
  options.head_dims = {128};
  options.seq_lens = {100, 200};
  options.group = 4;
  options.shapes = {"2,77,8,64"};
  const std::vector<AttnDecodeProblem> problems = decode_problems_of(options, Device::kCuda);
  ASSERT_EQ(problems.size(), 5u);
  EXPECT_EQ(to_string(problems[0]), "2 x 77 cached tokens, 8 heads of 64, group 4");
  EXPECT_EQ(to_string(problems[1]), "1 x 100 cached tokens, 32 heads of 128, group 4");
  EXPECT_EQ(to_string(problems[4]), "16 x 200 cached tokens, 32 heads of 128, group 4");
  options.group = 3;
  EXPECT_THROW(decode_problems_of(options, Device::kCuda), Error);
  options.group = 1;
  options.extras = {"sinks"};
  EXPECT_THROW(decode_problems_of(options, Device::kCuda), Error);
}

}  // namespace
}  // namespace tessera
