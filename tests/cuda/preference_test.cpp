// Losses of pairs in FP8, and teachers in few bits, on CUDA.
#include "tests/fixed_in_few_bits.h"
#include "tests/preference_fp8.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

struct CudaPreference : ::testing::Test {
  DeviceTraits device;

  void SetUp() override {
    std::string why_not;
    if (!find_cuda_device(device, why_not)) GTEST_SKIP() << "no GPU: " << why_not;
  }
};

TEST_F(CudaPreference, PairsInFp8BeginAtTheLogarithmOfTwo) {
  if (device.arch < 89) GTEST_SKIP() << "no GEMMs in FP8";
  expect_pairs_in_fp8_begin_at_logarithm_of_two(device, tolerance::kFp8LossOfPairs);
}

TEST_F(CudaPreference, TeachersHaveTheBitsOfTheirWidenedValues) {
  expect_teachers_of_widened_values(device, DType::kBF16);
}

TEST_F(CudaPreference, ThePlanOfATeacherIsTheStep) {
  for (const BaseForm base : kFewBits)
    for (const ModelConfig& teacher : small_teachers())
      expect_plan_is_the_step(device, distilled_shape(teacher, base, DType::kBF16));
}

}  // namespace
}  // namespace tessera::testing
