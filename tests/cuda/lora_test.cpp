// Adapters on CUDA, in both precisions.
#include "tests/cuda/twin.h"
#include "tests/lora_steps.h"

namespace tessera::testing {
namespace {

using CudaLora = CudaTest;

// At sizes with and without rows of whole packs. u is rounded once before it is used: twice the slack.
TEST_F(CudaLora, OperationsMatchTheCpu) {
  struct Case {
    int64_t N, C, r;
    LayerParts parts;
  };
  const Case cases[] = {
      {1, 8, 1, {8}}, {37, 24, 3, {17, 5, 5}}, {256, 128, 16, {128, 64, 64}}, {512, 768, 8, {3072, 3072}}};
  for (const DType dtype : kReal)
    for (const auto& [N, C, r, parts] : cases) {
      SCOPED_TRACE(fmt::format("{} N {} C {} r {}", name_of(dtype), N, C, r));
      const LayerParts layers = parts;
      const int64_t O = parts[0] + parts[1] + parts[2], width = count_of(parts) * r;
      const Twin x = input(dtype, {N, C}), b = input(dtype, {O, r}), dy = input(dtype, {N, O}),
                 a = input(dtype, {width, C}, 1 / std::sqrt(static_cast<float>(C)));
      for (const bool adds : {false, true}) {
        const Twin u = output(dtype, {N, width}), y = adds ? input(dtype, {N, O}) : output(dtype, {N, O});
        run_on_both({u, y}, [&](auto on) {
          return LoraForward{.x = on(x),
                             .a = on(a),
                             .b = on(b),
                             .parts = layers,
                             .scale = 0.5f,
                             .u = on(u),
                             .y = on(y),
                             .add = adds ? on(y) : Tensor{}};
        });
        expect_same(u, "u");
        expect_same(y, "y", 2);
      }
      for (const bool adds : {false, true}) {
        const Twin u = input(dtype, {N, width}), da = input(dtype, {width, C}), db = input(dtype, {O, r}),
                   dx = adds ? input(dtype, {N, C}) : output(dtype, {N, C});
        run_on_both({u, dx, da, db}, [&](auto on) {
          return LoraBackward{.dy = on(dy),
                              .x = on(x),
                              .a = on(a),
                              .b = on(b),
                              .parts = layers,
                              .scale = 0.5f,
                              .u = on(u),
                              .dx = on(dx),
                              .da = on(da),
                              .db = on(db),
                              .add = adds ? on(dx) : Tensor{}};
        });
        expect_same(u, "u");
        expect_same(dx, "dx", 2);
        expect_same(da, "da", 2);
        expect_same(db, "db");
      }
    }
}

// What the products of a frozen layer add beside an adapter
TEST_F(CudaLora, ProductsAddWhatTheyAreGiven) {
  for (const DType dtype : kReal)
    for (const Activation activation : {Activation::kGelu, Activation::kRelu, Activation::kRelu2}) {
      const Twin x = input(dtype, {65, 100}), weight = input(dtype, {36, 100}, 0.1f),
                 bias = input(dtype, {36}), pre = input(dtype, {65, 36}), y = output(dtype, {65, 36}),
                 dy = input(dtype, {65, 36}), dx = input(dtype, {65, 100});
      run_on_both({pre, y}, [&](auto on) {
        return LinearForward{.x = on(x),
                             .weight = on(weight),
                             .y = on(y),
                             .bias = on(bias),
                             .add = on(pre),
                             .pre_activation = on(pre),
                             .activation = activation};
      });
      expect_same(pre, "pre_activation");
      // Of a pre-activation that was rounded; a square has twice its error.
      expect_same(y, "y", activation == Activation::kRelu2 ? 3 : 2);
      run_on_both({dx}, [&](auto on) {
        return LinearBackward{.dy = on(dy),
                              .x = on(x),
                              .weight = on(weight),
                              .dx = on(dx),
                              .pre_activation = on(x),
                              .activation = activation,
                              .add = on(dx)};
      });
      expect_same(dx, "dx", 2);
    }
}

TEST_F(CudaLora, GradientsFollowFromThoseOfTheWholeWeights) {
  DeviceTraits device;
  std::string why_not;
  ASSERT_TRUE(find_cuda_device(device, why_not)) << why_not;
  for (const int64_t rank : {8, 3})
    for (const ModelConfig& model : all_models_with_adapters(128, rank)) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(model.mlp), text_of(model.lora)));
      expect_gradients_of_whole_weights(device, model, DType::kF32, tolerance::kCudaF32AgainstPyTorch,
                                        tolerance::kCudaF32AgainstPyTorch);
      ModelConfig rounded = model;
      rounded.experts.active = rounded.experts.count;  // where weights are rounded, others would be chosen
      expect_gradients_of_whole_weights(device, rounded, DType::kBF16, tolerance::kBf16ModelLoss,
                                        tolerance::kBf16ModelGradient);
    }
}

TEST_F(CudaLora, ThePlanIsTheLedger) {
  DeviceTraits device;
  std::string why_not;
  ASSERT_TRUE(find_cuda_device(device, why_not)) << why_not;
  for (const ModelConfig& model : all_models_with_adapters(128, 8))
    expect_plan_is_the_step(device, lora_shape(model, DType::kBF16));
}

}  // namespace
}  // namespace tessera::testing
