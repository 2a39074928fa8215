// Masters on the CPU: split into weights and their own lower bits, joined again, drawn; and what is refused.
#include "tests/masters.h"

#include "kernels/base/bf16.h"
#include "kernels/base/master.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

struct Masters : ::testing::Test {
  CpuStream cpu;
  HostTensors make;
  Tensor weights = make.empty({999}, DType::kBF16), low = make.empty({999}, DType::kU16),
         joined = make.poisoned({999});

  void expect_joined(const Tensor& masters) {
    cpu.run(JoinMasters{.weights = weights, .low = low, .masters = joined});
    EXPECT_EQ(std::memcmp(joined.data, masters.data, masters.bytes()), 0);
    for (int64_t i = 0; i < masters.numel(); ++i)
      ASSERT_EQ(float_from_bf16(weights.as<uint16_t>()[i]), nearest_bf16(masters.as<float>()[i])) << i;
  }
};

TEST_F(Masters, AreSplitAndJoined) {
  const Tensor masters = make.normal({999});
  for (size_t i = 0; i < 999; i += 3) {  // ties
    const uint32_t bits = (std::bit_cast<uint32_t>(floats(masters)[i]) & 0xffff0000u) | 0x8000u;
    floats(masters)[i] = std::bit_cast<float>(bits);
  }
  cpu.run(SplitMasters{.masters = masters.view({27, 37}), .weights = weights, .low = low});
  expect_joined(masters);
  const Tensor alone = make.empty({999}, DType::kBF16);
  cpu.run(SplitMasters{.masters = masters, .weights = alone, .low = {}});
  EXPECT_EQ(std::memcmp(alone.data, weights.data, weights.bytes()), 0);
}

TEST_F(Masters, AreDrawn) {
  const Tensor masters = make.poisoned({999});
  const auto drawn = [](const Tensor& y, const Tensor& bits) {
    return RandomNormal{.y = y, .low = bits, .deviation = 0.02, .seed = 5, .stream = 3};
  };
  cpu.run(drawn(masters, {})), cpu.run(drawn(weights, low));
  expect_joined(masters);
}

TEST_F(Masters, WrongArgumentsAreRefused) {
  const auto refusal = [&](const auto& op) -> std::string {
    try {
      cpu.run(op);
    } catch (const Error& error) {
      return error.what();
    }
    return "was not refused";
  };
  EXPECT_TRUE(says(refusal(SplitMasters{.masters = make.zeros({998}), .weights = weights, .low = low}),
                   {"split masters: masters ", "999 elements of fp32", "found fp32 [998]"}));
  EXPECT_TRUE(says(refusal(SplitMasters{.masters = weights, .weights = weights, .low = low}),
                   {"split masters: masters ", "fp32", "found bf16 [999]"}));
  EXPECT_TRUE(says(refusal(SplitMasters{.masters = joined, .weights = joined, .low = low}),
                   {"split masters: weights ", "bf16 [999] on cpu", "found fp32 [999]"}));
  EXPECT_TRUE(says(refusal(SplitMasters{.masters = joined, .weights = weights, .low = weights}),
                   {"split masters: low ", "uint16 [999]", "found bf16 [999]"}));
  EXPECT_TRUE(says(refusal(JoinMasters{.weights = weights, .low = {}, .masters = joined}),
                   {"join masters: low ", "uint16 [999]"}));
  EXPECT_TRUE(says(refusal(JoinMasters{.weights = weights, .low = low, .masters = {}}),
                   {"join masters: masters ", "999 elements of fp32"}));
}

}  // namespace
}  // namespace tessera::testing
