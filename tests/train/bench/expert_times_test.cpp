// The products of a layer of experts that ./bench gemm times: on the CPU they run, and a table tells of them.
#include "train/bench/expert_times.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/model_variants.h"
#include "train/session/device.h"

namespace tessera::testing {
namespace {

TEST(ExpertTimes, AllProductsOfALayer) {
  const std::unique_ptr<Backend> be = make_backend(choose_device(DeviceRequest::kCpu).traits);
  RunShape shape;
  shape.micro_batch = 2, shape.sequence_length = 9;
  EXPECT_TRUE(time_experts(*be, shape).empty());
  shape.model.channels = 24;
  shape.model.experts = {.count = 5, .active = 2, .width = 7};
  const std::vector<ExpertTime> times = time_experts(*be, shape);
  ASSERT_EQ(times.size(), 9u);
  constexpr int64_t kSecond = 2 * (2 * 9 * 2) * 24 * 7;  // 2 operations for each row, channel and column
  EXPECT_EQ(times[1].products, "second layer, forward");
  EXPECT_EQ(times[1].flops, kSecond);
  EXPECT_EQ(times[6].products, "forward");
  EXPECT_EQ(times[6].flops, 3 * kSecond);
  EXPECT_DOUBLE_EQ(times[6].ms, times[0].ms + times[1].ms);
  EXPECT_EQ(times[7].flops, 6 * kSecond);
  EXPECT_EQ(times[8].flops, 9 * kSecond);
  for (const ExpertTime& time : times) EXPECT_GT(time.ms, 0) << time.products;
}

TEST(ExpertTimes, ATableAndJson) {
  const std::vector<ExpertTime> times{{.products = "forward", .flops = 600'000'000'000, .ms = 1.5}};
  EXPECT_EQ(table_of(times, 800e12),
            "products of a layer of experts         ms  TFLOP/s  of peak\n"
            "forward                            1.5000    400.0    50.0%\n");
  EXPECT_DOUBLE_EQ(to_json(times)[0]["tflops"].get<double>(), 400);
}

}  // namespace
}  // namespace tessera::testing
