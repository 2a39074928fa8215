// The CPU against PyTorch: loss, every gradient, ten AdamW steps.
#include "tests/gpt2_reference.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

TEST(PyTorch, CpuAgreesInEveryGradientAndAfterTenSteps) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const int64_t micro_batch : {2, 1}) {
      const ReferenceErrors e = compare_with_pytorch({}, DType::kF32, attention, micro_batch);
      const std::string what = fmt::format("{}, micro-batch {}", name_of(attention), micro_batch);
      EXPECT_LT(e.first_loss, tolerance::kCpuAgainstPyTorch) << what;
      EXPECT_LT(e.gradients, tolerance::kCpuAgainstPyTorch) << what << ": " << e.worst_gradient;
      EXPECT_LT(e.losses, tolerance::kCpuAgainstPyTorch) << what;
      EXPECT_LT(e.grad_norms, tolerance::kCpuAgainstPyTorch) << what;
      EXPECT_LT(e.weights, tolerance::kCpuAgainstPyTorch) << what << ": " << e.worst_weight;
      fmt::print("[ measured ] {}: loss {:.1e}, gradients {:.1e} ({}), weights after ten steps {:.1e} ({})\n",
                 what, e.first_loss, e.gradients, e.worst_gradient, e.weights, e.worst_weight);
    }
}

}  // namespace
}  // namespace tessera::testing
