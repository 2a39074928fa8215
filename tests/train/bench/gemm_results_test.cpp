// What ./bench gemm tells of made-up figures.
#include "train/bench/gemm_results.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/gemm_library.h"

namespace tessera::testing {
namespace {

GemmResults made_up_gemms() {
  GemmKey odd = product(3, 5, 7);
  odd.epilogue = GemmEpilogue::kBias;
  return {.platform = {.device = "a GPU", .cublaslt = 130100, .cudart = 13000},
          .peak_flops = 800e12,
          .rows = {{.key = product(1000, 1000, 1000),
                    .calls = 12,
                    .times = {{algorithm(1), 0.005}, {algorithm(2), 0.004}, {algorithm(3), 0.009}}},
                   {.key = product(2000, 1000, 1000), .calls = 1, .times = {{algorithm(1), 0.01}}},
                   {.key = odd, .calls = 2, .times = {}}}};
}

TEST(GemmResults, ATableOfProductsAndTheirSum) {
  const GemmResults results = made_up_gemms();
  EXPECT_DOUBLE_EQ(first_ms(results), 12 * 0.005 + 0.01);
  EXPECT_DOUBLE_EQ(chosen_ms(results), 12 * 0.004 + 0.01);
  EXPECT_EQ(
      table_of(results),
      "GEMM                                   calls   first ms  chosen ms  TFLOP/s of peak   gain  place, "
      "algorithm\n"
      "[1000, 1000] x [1000, 1000]^T in bf16     12     0.0050     0.0040    500.0   62.5%  20.0%  2 of 3: "
      "id "
      "2, tile 22, stages 0, cluster 2\n"
      "[2000, 1000] x [1000, 1000]^T in bf16      1     0.0100     0.0100    400.0   50.0%   0.0%  1 of 1: "
      "id "
      "1, tile 21, stages 0, cluster 2\n"
      "[3, 7] x [5, 7]^T in bf16, bias            2  the library computes it in two passes\n"
      "all of a micro-batch                              0.070      0.058   0.012 ms less\n");
}

TEST(GemmResults, TheTableHasWhatIsChosen) {
  const GemmTable table = table_from(made_up_gemms());
  EXPECT_EQ(table.platform.device, "a GPU");
  ASSERT_EQ(table.choices.size(), 2u);
  EXPECT_EQ(table.choices.at(product(1000, 1000, 1000)).algorithm, algorithm(2));
  EXPECT_EQ(table.choices.at(product(1000, 1000, 1000)).first_ms, 0.005);
}

TEST(GemmResults, JsonHasEveryTime) {
  const nlohmann::ordered_json json = to_json(made_up_gemms());
  EXPECT_EQ(json["gemms"][0]["ms"], (std::vector{0.005, 0.004, 0.009}));
  EXPECT_EQ(json["gemms"][0]["chosen"], 2);
  EXPECT_DOUBLE_EQ(json["gemms"][0]["tflops"].get<double>(), 500);
  EXPECT_FALSE(json["gemms"][2].contains("ms"));
}

}  // namespace
}  // namespace tessera::testing
