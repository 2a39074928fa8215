// The logits and the loss in one on Hopper, whose product writes exponentials, against the CPU.
#include "kernels/gemm/sm90/problem.h"
#include "tests/cuda/twin.h"
#include "tests/train_steps.h"

namespace tessera {
namespace {

class CudaHeadLoss : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (!gemm::available()) GTEST_SKIP() << "no GPU of compute capability 9.0, or built without 90a";
  }
};

struct Size {
  int64_t N, C, V, padded;
};

// Rows, channels and columns that are no multiples of a tile; tiles for several rounds; targets that repeat,
// at both ends of the vocabulary, and rows without one
TEST_F(CudaHeadLoss, OperationsAreThoseOfTheCpu) {
  constexpr DType kType = DType::kBF16;
  for (const auto& [N, C, V, padded] : {Size{1, 8, 5, 8}, Size{67, 72, 203, 256}, Size{300, 136, 640, 640},
                                        Size{1000, 64, 8000, 8064}, Size{2999, 40, 193, 200}}) {
    SCOPED_TRACE(fmt::format("N {} C {} V {} of {}", N, C, V, padded));
    const Twin x = input(kType, {N, C}), weight = input(kType, {padded, C}, 0.2f);
    std::mt19937 random(7);
    const int64_t vocabulary = V, rows = N;
    const Twin targets = indices({N}, [&](int64_t n) {
      return n % 11 == 10 ? kNoTarget
             : n % 5 == 1 ? 0
             : n % 7 == 2 ? static_cast<int32_t>(vocabulary - 1)
                          : static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
    });
    const Twin scale = input(DType::kF32, {1}), weights = input(DType::kF32, {N}),
               e = output(kType, {N, padded}), losses = output(DType::kF32, {N}),
               scaled = output(kType, {N, C}), factors = output(DType::kF32, {2, N}),
               sums = output(DType::kF32, {(padded + HeadLoss::kSumColumns - 1) / HeadLoss::kSumColumns, N});
    run_on_both({e, losses, scaled, factors, sums}, [&](auto on) {
      return HeadLoss{.x = on(x),
                      .weight = on(weight),
                      .targets = on(targets),
                      .gradient_scale = on(scale),
                      .weights = rows % 2 == 0 ? Tensor{} : on(weights),
                      .vocab_size = vocabulary,
                      .e = on(e),
                      .losses = on(losses),
                      .scaled_x = on(scaled),
                      .factors = on(factors),
                      .sums = on(sums)};
    });
    // Losses, factors and sums are fp32, but of sums of products; e is their power.
    expect_same(e, "e");
    expect_same_norm(losses, "losses");
    expect_same_norm(factors, "factors");
    expect_same(scaled, "scaled_x");

    const Twin product = input(kType, {N, C}), dweight = input(kType, {padded, C}),
               own = input(kType, {N, C});
    cuda().run(Copy{factors.cpu, factors.cuda});
    run_on_both({own, dweight}, [&](auto on) {
      return HeadGradient{.x = on(own),
                          .product = on(product),
                          .targets = on(targets),
                          .factors = on(factors),
                          .weight = on(weight),
                          .dweight = on(dweight)};
    });
    expect_same(own, "dx");
    expect_same(dweight, "dweight", 2);  // a run of rows that two windows share is added twice
  }
}

TEST_F(CudaHeadLoss, StepsAreThoseOfSeparateOperations) {
  for (const bool tied : {true, false})
    for (const int64_t chunk : {0, 40}) {
      SCOPED_TRACE(fmt::format("tied {}, chunk {}", tied, chunk));
      RunShape separate{
          .model = {.vocab_size = 201, .context = 64, .layers = 2, .heads = 1, .channels = 64, .tied = tied},
          .micro_batch = 2,
          .micro_steps = 2,
          .sequence_length = 64,
          .dtype = DType::kBF16,
          .classifier_chunk = chunk};
      RunShape fused = separate;
      fused.fused_head = true;
      const DeviceTraits& device = cuda().backend().traits();
      testing::HostTensors make;
      const testing::StepsResult want = testing::run_steps(device, separate, 4, make),
                                 found = testing::run_steps(device, fused, 4, make);
      for (size_t i = 0; i < want.losses.size(); ++i)
        EXPECT_NEAR(found.losses[i], want.losses[i], tolerance::kBf16ModelLoss * want.losses[i]) << i;
      for (size_t i = 0; i < want.first_gradients.size(); ++i)
        EXPECT_LT(testing::relative_error(found.first_gradients[i].tensor, want.first_gradients[i].tensor),
                  tolerance::kBf16ModelGradient)
            << want.first_gradients[i].name;
      RunShape recorded = fused;
      recorded.cuda_graphs = true;
      testing::expect_same_bits(testing::run_steps(device, recorded, 4, make), found);
      testing::expect_plan_is_the_step(device, fused);
    }
}

}  // namespace
}  // namespace tessera
