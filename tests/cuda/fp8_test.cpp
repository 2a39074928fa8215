// FP8 on CUDA against the CPU, whose values are rounded in the same way: FP8 values must be the same,
// products agree to rounding. Then training steps.
#include <limits>

#include "kernels/base/fp8_scale.h"
#include "kernels/gemm/linear_gemms.h"
#include "kernels/gemm/sm90/problem.h"
#include "tests/cuda/fp8_twins.h"
#include "tests/model_families.h"
#include "tests/stored_fp8.h"
#include "tests/train_steps.h"

namespace tessera {
namespace {

constexpr DType kFormats[] = {DType::kE4M3, DType::kE5M2};
// Whole packs and not; the last are of experts
const Shape kShapes[] = {{1, 1}, {3, 5}, {64, 128}, {130, 200}, {1000, 72}, {3, 5, 7}, {9, 70, 200}};

class Fp8Test : public Fp8Twins {
 protected:
  void expect_own(const Gemm& gemm) {
    EXPECT_EQ(cuda().backend().gemms()->algorithms(key_of(gemm), 8),
              std::vector{GemmAlgorithm{.id = GemmAlgorithm::kOwn}});
  }
};

// Sizes that are whole tiles and packs, and sizes that are not; numbers in every binade; with a transposed
// copy, or that alone
TEST_F(Fp8Test, QuantiseHasTheFp8OfTheCpu) {
  for (const DType dtype : kReal)
    for (const DType format : kFormats)
      for (const Shape& shape : kShapes)
        for (const auto& [with_y, with_transposed] :
             {std::pair{true, false}, std::pair{true, true}, std::pair{false, true}}) {
          std::normal_distribution<float> normal;
          std::uniform_int_distribution<int> binade(-30, 12);
          const Twin x = with_values(dtype, shape, [&](int64_t i) {
            if (i == 7) return std::numeric_limits<float>::quiet_NaN();
            return i == 11 ? 1e30f : std::ldexp(normal(random_), binade(random_));
          });
          const Quantised q = room(format, shape, 0.125f);
          const Twin amax = scalar(0.5f);
          run_on_both({q.data, q.transposed}, [&](auto on) {
            Fp8Matrix y = on(q.cpu(), q.cuda());
            if (!with_y) y.data = {};
            return Quantise{.x = on(x),
                            .format = format,
                            .y = y,
                            .transposed = with_transposed ? on(q.transposed) : Tensor{},
                            .amax = on(amax)};
          });
          if (with_y) expect_same_values(q.data, q.scale, format, "y");
          if (with_transposed) expect_same_values(q.transposed, q.scale, format, "transposed");
          const float found = floats_of(amax.cuda)[0], want = amax.cpu.as<float>()[0];
          EXPECT_TRUE(found == want || (std::isnan(found) && std::isnan(want))) << found << " " << want;
        }
}

TEST_F(Fp8Test, CountsWhatIsCutOffAsTheCpu) {
  for (const DType dtype : kReal)
    for (const DType format : kFormats)
      for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{130, 200}, Shape{4096, 1056}}) {
        std::normal_distribution<float> normal(0, format == DType::kE4M3 ? 448.0f : 57344.0f);
        const Twin x = with_values(dtype, shape, [&](int64_t i) {
          if (i == 7) return std::numeric_limits<float>::quiet_NaN();
          return i == 11 ? -std::numeric_limits<float>::infinity() : normal(random_);
        });
        const Twin scale = scalar(0.5f), count = indices({2}, [](int64_t) { return 0; });
        run_on_both({count}, [&](auto on) {
          return CountSaturated{.x = on(x), .format = format, .scale = on(scale), .count = on(count)};
        });
        uint64_t on_cpu = 0, on_cuda = 0;
        std::memcpy(&on_cpu, count.cpu.data, sizeof on_cpu);
        std::memcpy(&on_cuda, bytes_of(count.cuda).data(), sizeof on_cuda);
        EXPECT_EQ(on_cuda, on_cpu);
        if (shape.numel() > 100) {
          EXPECT_GT(on_cpu, static_cast<uint64_t>(shape.numel()) / 4)
              << "by half the scale, most of two thirds";
        }
      }
}

// Rows in packs and not; of the last one a block reads several parts
TEST_F(Fp8Test, CurrentScalesAreThoseOfTheCpu) {
  for (const DType dtype : kReal)
    for (const DType format : kFormats)
      for (const auto& [shape, spread] :
           {std::pair{Shape{260, 96}, 1e-8f}, {Shape{264, 104}, 1.0f}, {Shape{2048, 1056}, 300.0f}}) {
        const Twin x = input(dtype, shape, spread);
        const Quantised q = quantised(x, format);
        expect_same_values(q.data, q.scale, format, "y");
        expect_same_values(q.transposed, q.scale, format, "transposed");
      }
}

TEST_F(Fp8Test, UpdatesScalesAsTheCpu) {
  constexpr int64_t S = 300;
  const Twin amax = with_values(DType::kF32, {3, 2, S}, [&](int64_t i) {
    if (i % 50 == 0) return 0.0f;
    return i == 77 ? std::numeric_limits<float>::infinity() : std::ldexp(1.5f, static_cast<int>(i % 60) - 40);
  });
  const Twin scale = input(DType::kF32, {2, S, kFp8ScaleStride});
  run_on_both({scale}, [&](auto on) { return UpdateScales{.amax = on(amax), .scale = on(scale)}; });
  const std::vector<float> found = floats_of(scale.cuda);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], scale.cpu.as<float>()[i]) << i;
}

// Of parts of matrices, as ranks have them: the largest element alone, then scales without headroom
TEST_F(Fp8Test, ScalesOfPartsAreThoseOfTheCpu) {
  constexpr int64_t S = 3;
  const Twin amax = with_values(DType::kF32, {2, 1, S}, [](int64_t) { return 0.0f; }),
             scale = input(DType::kF32, {1, S, kFp8ScaleStride});
  for (int64_t i = 0; i < 2 * S; ++i) {
    if (i % S == 2) continue;  // zeros
    const Twin x = input(DType::kBF16, {1, 1000 + 8 * i}, 3.0f * static_cast<float>(i + 1));
    run_on_both({amax}, [&](auto on) {
      const Tensor all = on(amax).view({2 * S});
      return Quantise{.x = on(x),
                      .format = DType::kE4M3,
                      .y = {.data = {}, .scale = on(scale).view({S * kFp8ScaleStride}).rows(0, 1)},
                      .amax = all.rows(i, 1)};
    });
  }
  run_on_both({scale},
              [&](auto on) { return UpdateScales{.amax = on(amax), .scale = on(scale), .current = true}; });
  const std::vector<float> found = floats_of(scale.cuda);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], scale.cpu.as<float>()[i]) << i;
  EXPECT_EQ(found[2 * kFp8ScaleStride], 1);
}

// In whole packs and tiles and not; the values are exact in both dtypes.
TEST_F(Fp8Test, ValuesAreTakenBackAndTurned) {
  for (const Shape& shape : kShapes) {
    const Twin x = input(DType::kBF16, shape, 0.02f);
    const Quantised q = quantised(x, DType::kE4M3);
    const Twin turned = output(DType::kE4M3, q.transposed.cpu.shape);
    for (const DType dtype : kReal) {
      if (shape.rank() == 3) continue;
      const Twin y = output(dtype, shape);
      run_on_both({y}, [&](auto on) { return Dequantise{.x = on(q.cpu(), q.cuda()), .y = on(y)}; });
      const std::vector<float> found = floats_of(y.cuda);
      for (size_t i = 0; i < found.size(); ++i) ASSERT_EQ(found[i], y.cpu.as<float>()[i]) << i;
    }
    run_on_both({turned}, [&](auto on) { return TransposeFp8{.x = on(q.data), .y = on(turned)}; });
    EXPECT_TRUE(bytes_of(turned.cuda) == bytes_of(q.transposed.cuda)) << x.cpu.to_string();
  }
}

// Widths of every kind of team, whole and not: one to four packs of a warp, several warps, the most threads
TEST_F(Fp8Test, NormsWriteTheFp8OfQuantise) {
  for (const auto [N, C] :
       {std::array<int64_t, 2>{1, 8}, {37, 256}, {6, 264}, {5, 768}, {3, 1000}, {9, 1032}, {2, 4104}}) {
    const auto rows = [&](float spread = 1) { return input(DType::kBF16, {N, C}, spread).cuda; };
    const auto vector = [&] { return input(DType::kBF16, {C}).cuda; };
    const auto statistics = [&] { return output(DType::kF32, {N}).cuda; };
    const Twin poisoned = with_values(DType::kBF16, {N, C}, [&](int64_t i) {
      return i == 3 ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(i % 17) - 8;
    });
    const Tensor y = output(DType::kBF16, {N, C}).cuda, weight = vector(), mean = statistics(),
                 rstd = statistics();
    for (const Tensor& x : {rows(3), poisoned.cuda}) {
      const LayerNormForward layer{
          .x = x, .weight = weight, .bias = vector(), .y = y, .mean = mean, .rstd = rstd};
      expect_fp8(layer, &LayerNormForward::y, &LayerNormForward::fp8_y, DType::kE4M3);
      const RmsNormForward rms{.x = x, .weight = weight, .y = y, .rstd = rstd, .epsilon = 1e-5f};
      expect_fp8(rms, &RmsNormForward::y, &RmsNormForward::fp8_y, DType::kE4M3);
    }
    for (const bool with_sum : {false, true}) {
      LayerNormBackward layer{.dy = rows(),
                              .x = rows(),
                              .weight = weight,
                              .mean = mean,
                              .rstd = rstd,
                              .dx = y,
                              .dweight = vector(),
                              .dbias = vector(),
                              .add = rows(40)};
      RmsNormBackward rms{
          .dy = layer.dy, .x = layer.x, .weight = weight, .rstd = rstd, .dx = y, .dweight = vector()};
      if (with_sum) layer.dx_sum = rms.dx_sum = vector();
      cuda().run(LayerNormForward{
          .x = layer.x, .weight = weight, .bias = vector(), .y = y, .mean = mean, .rstd = rstd});
      expect_fp8(layer, &LayerNormBackward::dx, &LayerNormBackward::fp8_dx, DType::kE5M2);
      cuda().run(RmsNormForward{.x = layer.x, .weight = weight, .y = y, .rstd = rstd, .epsilon = 1e-5f});
      expect_fp8(rms, &RmsNormBackward::dx, &RmsNormBackward::fp8_dx, DType::kE5M2);
    }
  }
}

// One block and several; a last one that is not whole
TEST_F(Fp8Test, SwigluWritesTheFp8OfQuantise) {
  for (const auto [N, F] : {std::array<int64_t, 2>{1, 8}, {37, 72}, {67, 256}}) {
    const Tensor gate_up = input(DType::kBF16, {N, 2 * F}, 3).cuda;
    const GatedForward forward{.gate_up = gate_up, .y = output(DType::kBF16, {N, F}).cuda};
    expect_fp8(forward, &GatedForward::y, &GatedForward::fp8_y, DType::kE4M3);
    const GatedBackward backward{.dy = input(DType::kBF16, {N, F}).cuda,
                                 .gate_up = gate_up,
                                 .d_gate_up = output(DType::kBF16, {N, 2 * F}).cuda};
    expect_fp8(backward, &GatedBackward::d_gate_up, &GatedBackward::fp8_d_gate_up, DType::kE5M2);
  }
}

// In a pass of the activation's own, by packs and by elements, and after a product that computes GELU itself
TEST_F(Fp8Test, ActivationsWriteTheFp8OfQuantise) {
  if (!multiplies()) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  for (const auto [N, C, F] : {std::array<int64_t, 3>{16, 16, 16}, {48, 32, 80}, {64, 32, 128}})
    for (const Activation activation : kActivations) {
      const auto normal = [&](Shape shape, float spread = 1) { return input(DType::kBF16, shape, spread); };
      const Twin x = normal({N, C}, 3), w = normal({F, C}), dy = normal({N, C}, 4), v = normal({C, F});
      const Quantised x8 = quantised(x, DType::kE4M3), w8 = quantised(w, DType::kE4M3),
                      dy8 = quantised(dy, DType::kE5M2), v8 = quantised(v, DType::kE4M3);
      const LinearForward forward{.x = x.cuda,
                                  .weight = w.cuda,
                                  .y = output(DType::kBF16, {N, F}).cuda,
                                  .bias = normal({F}).cuda,
                                  .pre_activation = output(DType::kBF16, {N, F}).cuda,
                                  .activation = activation,
                                  .fp8_x = x8.cuda(),
                                  .fp8_weight = w8.cuda()};
      expect_fp8(forward, &LinearForward::y, &LinearForward::fp8_y, DType::kE4M3);
      const LinearBackward backward{.dy = dy.cuda,
                                    .x = normal({N, F}).cuda,
                                    .weight = v.cuda,
                                    .dx = output(DType::kBF16, {N, F}).cuda,
                                    .pre_activation = normal({N, F}).cuda,
                                    .activation = activation,
                                    .fp8_dy = dy8.cuda(),
                                    .fp8_weight = v8.cuda_transposed()};
      expect_fp8(backward, &LinearBackward::dx, &LinearBackward::fp8_dx, DType::kE5M2);
    }
}

// Padding in a pack with logits, and whole packs of it; a row that shared memory holds a part of. Every third
// row has no target.
TEST_F(Fp8Test, CrossEntropyWritesTheFp8OfQuantise) {
  struct Case {
    int64_t N, V, padded;
  };
  for (const Case& c : {Case{2, 8, 8}, Case{9, 257, 264}, Case{65, 61, 128}, Case{4, 50257, 50304},
                        Case{2, 130'000, 130'048}})
    for (const float scale : {1.0f, 4.0f})
      for (const bool with_nan : {false, true}) {
        SCOPED_TRACE(fmt::format("N {} V {} of {}, scale {}", c.N, c.V, c.padded, scale));
        const Twin random = random_indices({c.N}, c.V),
                   targets = indices({c.N}, [&](int64_t n) {
                     return n % 3 == 1 ? kNoTarget : random.cpu.as<int32_t>()[n];
                   });
        std::normal_distribution<float> normal(0, 3);
        const Twin logits = with_values(DType::kBF16, {c.N, c.padded}, [&](int64_t i) {
          return with_nan && (i == 3 || i == c.padded) ? std::numeric_limits<float>::quiet_NaN()
                                                       : normal(random_);
        });
        const CrossEntropy loss{.logits = logits.cuda,
                                .targets = targets.cuda,
                                .losses = output(DType::kF32, {c.N}).cuda,
                                .vocab_size = c.V,
                                .want_gradient = true,
                                .gradient_scale = scale == 1 ? Tensor{} : scalar(scale).cuda};
        expect_fp8(loss, &CrossEntropy::logits, &CrossEntropy::fp8_dlogits, DType::kE5M2);
      }
}

struct Sizes {
  int64_t N, C, O;
};
constexpr Sizes kSizes[] = {{16, 16, 16}, {128, 64, 192}, {512, 256, 768}, {1024, 768, 128}};
constexpr Sizes kBackwardSizes[] = {{16, 16, 16},     {128, 64, 192},  {512, 256, 768},
                                    {1024, 768, 128}, {4096, 48, 112}, {20000, 208, 80}};

TEST_F(Fp8Test, ForwardIsThatOfTheCpu) {
  if (!multiplies()) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  for (const auto [N, C, O] : kSizes)
    for (const bool with_bias : {false, true})
      for (const bool with_add : {false, true})
        for (const auto activation : {std::optional<Activation>{}, std::optional(Activation::kGelu),
                                      std::optional(Activation::kRelu)}) {
          if (with_add && activation) continue;
          SCOPED_TRACE(fmt::format("{} x {} x {}, bias {}, add {}", N, C, O, with_bias, with_add));
          const Twin x = input(DType::kBF16, {N, C}), w = input(DType::kBF16, {O, C}, 0.1f),
                     b = input(DType::kBF16, {O}), add = input(DType::kBF16, {N, O}),
                     y = output(DType::kBF16, {N, O}), u = output(DType::kBF16, {N, O});
          const Quantised x8 = quantised(x, DType::kE4M3), w8 = quantised(w, DType::kE4M3);
          run_on_both({y, u}, [&](auto on) {
            LinearForward op{.x = on(x),
                             .weight = on(w),
                             .y = on(y),
                             .fp8_x = on(x8.cpu(), x8.cuda()),
                             .fp8_weight = on(w8.cpu(), w8.cuda())};
            if (with_bias) op.bias = on(b);
            if (with_add) op.add = on(add);
            if (activation) op.pre_activation = on(u), op.activation = *activation;
            return op;
          });
          expect_same(y, "y");
          if (activation) expect_same(u, "pre_activation");
        }
}

struct BackwardCase {
  int64_t N, C, O;
  bool slope, fp8_dw;
};
std::vector<BackwardCase> backward_cases() {
  std::vector<BackwardCase> cases;
  for (const auto [N, C, O] : kBackwardSizes)
    for (const bool slope : {false, true})
      for (const bool fp8_dw : {false, true}) cases.push_back({N, C, O, slope, fp8_dw});
  return cases;
}

TEST_F(Fp8Test, BackwardIsThatOfTheCpu) {
  if (!multiplies()) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  for (const auto [N, C, O, slope, fp8_dw] : backward_cases()) {
    SCOPED_TRACE(fmt::format("{} x {} x {}, slope {}, dW in FP8 {}", N, C, O, slope, fp8_dw));
    const Twin x = input(DType::kBF16, {N, C}), w = input(DType::kBF16, {O, C}, 0.1f),
               dy = input(DType::kBF16, {N, O}, 1e-5f), u = input(DType::kBF16, {N, C}),
               dx = output(DType::kBF16, {N, C}), dw = input(DType::kBF16, {O, C}, 1e-4f),
               db = input(DType::kBF16, {O}, 1e-4f);
    const Quantised w8 = quantised(w, DType::kE4M3), dy8 = quantised(dy, DType::kE5M2),
                    x8 = quantised(x, DType::kE4M3);
    run_on_both({dx, dw, db}, [&](auto on) {
      LinearBackward op{.dy = on(dy),
                        .x = on(x),
                        .weight = on(w),
                        .dx = on(dx),
                        .dweight = on(dw),
                        .dbias = on(db),
                        .fp8_dy = on(dy8.cpu(), dy8.cuda()),
                        .fp8_weight = on(w8.cpu_transposed(), w8.cuda_transposed())};
      if (slope) op.pre_activation = on(u);
      if (fp8_dw) {
        op.fp8_dy_transposed = on(dy8.cpu_transposed(), dy8.cuda_transposed());
        op.fp8_x_transposed = on(x8.cpu_transposed(), x8.cuda_transposed());
      }
      return op;
    });
    expect_same(dx, "dx");
    expect_same(dw, "dweight");
    expect_same(db, "dbias");
  }
}

// Ours, with an activation: sizes that are no multiples of a tile, several rounds of all multiprocessors,
// sums of one step and of many
constexpr Sizes kOwnSizes[] = {
    {1, 16, 16}, {67, 144, 208}, {300, 272, 784}, {515, 1600, 192}, {33001, 80, 208}};
constexpr Activation kOfOwn[] = {Activation::kGelu, Activation::kGeluExact};

TEST_F(Fp8Test, OurForwardIsThatOfTheCpuAndWritesFp8) {
  if (!gemm::available()) GTEST_SKIP() << "no GPU of compute capability 9.0, or built without 90a";
  cuda().backend().gemms()->take_from(GemmSource::kTessera);
  for (const auto [N, C, O] : kOwnSizes)
    for (const bool with_bias : {false, true})
      for (const Activation activation : kOfOwn) {
        SCOPED_TRACE(fmt::format("{} x {} x {}, bias {}, {}", N, C, O, with_bias, name_of(activation)));
        const Twin x = input(DType::kBF16, {N, C}), w = input(DType::kBF16, {O, C}, 0.1f),
                   b = input(DType::kBF16, {O}), y = output(DType::kBF16, {N, O}),
                   u = output(DType::kBF16, {N, O});
        const Quantised x8 = quantised(x, DType::kE4M3), w8 = quantised(w, DType::kE4M3);
        const auto make = [&](auto on) {
          return LinearForward{.x = on(x),
                               .weight = on(w),
                               .y = on(y),
                               .bias = with_bias ? on(b) : Tensor{},
                               .pre_activation = on(u),
                               .activation = activation,
                               .fp8_x = on(x8.cpu(), x8.cuda()),
                               .fp8_weight = on(w8.cpu(), w8.cuda())};
        };
        expect_own(*gemms_of(make(OnCuda{})).own);
        run_on_both({y, u}, make);
        expect_same(y, "y");
        expect_same(u, "pre_activation");
        expect_fp8(make(OnCuda{}), &LinearForward::y, &LinearForward::fp8_y, DType::kE4M3);
      }
}

TEST_F(Fp8Test, OurBackwardIsThatOfTheCpuAndWritesFp8) {
  if (!gemm::available()) GTEST_SKIP() << "no GPU of compute capability 9.0, or built without 90a";
  cuda().backend().gemms()->take_from(GemmSource::kTessera);
  for (const auto [N, O, C] : kOwnSizes)
    for (const Activation activation : kOfOwn) {
      SCOPED_TRACE(fmt::format("{} x {} x {}, {}", N, O, C, name_of(activation)));
      const Twin x = input(DType::kBF16, {N, C}), w = input(DType::kBF16, {O, C}),
                 dy = input(DType::kBF16, {N, O}), u = input(DType::kBF16, {N, C}),
                 dx = output(DType::kBF16, {N, C}), sum = input(DType::kBF16, {C});
      const Quantised w8 = quantised(w, DType::kE4M3), dy8 = quantised(dy, DType::kE5M2);
      const auto make = [&](auto on) {
        return LinearBackward{.dy = on(dy),
                              .x = on(x),
                              .weight = on(w),
                              .dx = on(dx),
                              .pre_activation = on(u),
                              .activation = activation,
                              .fp8_dy = on(dy8.cpu(), dy8.cuda()),
                              .fp8_weight = on(w8.cpu_transposed(), w8.cuda_transposed())};
      };
      const auto with_sum = [&](auto on) {
        LinearBackward op = make(on);
        op.dx_sum = on(sum);
        return op;
      };
      expect_own(*gemms_of(make(OnCuda{})).own_dx);
      run_on_both({dx, sum}, with_sum);
      expect_same(dx, "dx");
      expect_same(sum, "dx_sum");
      expect_fp8(make(OnCuda{}), &LinearBackward::dx, &LinearBackward::fp8_dx, DType::kE5M2);
    }
}

// A model on both devices: the CPU in fp32 with the same roundings, CUDA in bf16; recorded and not.
TEST_F(Fp8Test, StepsAreThoseOfTheCpu) {
  if (!multiplies()) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  const RunShape shape{.model = {.vocab_size = 61, .context = 64, .layers = 4, .heads = 2, .channels = 128},
                       .micro_batch = 4,
                       .micro_steps = 2,
                       .sequence_length = 64,
                       .fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true, .head = true, .dw = true}};
  RunShape on_gpu = shape;
  on_gpu.dtype = DType::kBF16;
  RunShape recorded = on_gpu;
  recorded.cuda_graphs = true;
  testing::HostTensors make;
  const testing::StepsResult want = testing::run_steps({}, shape, 10, make),
                             found = testing::run_steps(cuda().backend().traits(), on_gpu, 10, make);
  for (size_t i = 0; i < want.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], want.losses[i], tolerance::kFp8ModelLoss * want.losses[i]) << i;
  testing::expect_same_bits(testing::run_steps(cuda().backend().traits(), recorded, 10, make), found);
  testing::expect_same_bits(testing::run_steps(cuda().backend().traits(), on_gpu, 10, make), found);
  testing::expect_plan_is_the_step(cuda().backend().traits(), on_gpu);
}

// Experts and routers compute in bf16, the other layers of blocks in FP8. There is a shared expert, and one
// block has no experts.
TEST_F(Fp8Test, StepsWithExpertsAreThoseOfTheCpu) {
  if (!multiplies()) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  const DeviceTraits device = cuda().backend().traits();
  ModelConfig model = testing::with_experts(
      testing::with_qwen3_parts({.vocab_size = 61, .context = 64, .layers = 4, .heads = 2, .channels = 128}));
  model.experts.width = 64, model.experts.shared_width = 48, model.experts.dense_layers = {1};
  for (const Fp8Scaling scaling : {Fp8Scaling::kDelayed, Fp8Scaling::kCurrent})
    for (const bool dw : {false, true}) {
      SCOPED_TRACE(fmt::format("{} scales, dw {}", name_of(scaling), dw));
      const RunShape shape{
          .model = model,
          .micro_batch = 4,
          .micro_steps = 2,
          .sequence_length = 64,
          .fp8 = {.gemm_dtype = GemmDtype::kFp8, .scaling = scaling, .edges = true, .head = true, .dw = dw}};
      RunShape on_gpu = shape;
      on_gpu.dtype = DType::kBF16;
      RunShape without = on_gpu, recorded = on_gpu;
      without.fp8 = {}, recorded.cuda_graphs = true;
      testing::HostTensors make;
      const testing::StepsResult want = testing::run_steps({}, shape, 10, make),
                                 found = testing::run_steps(device, on_gpu, 10, make),
                                 in_bf16 = testing::run_steps(device, without, 10, make);
      EXPECT_NE(found.losses.front(), in_bf16.losses.front()) << "nothing was rounded";
      for (size_t i = 0; i < want.losses.size(); ++i) {
        EXPECT_NEAR(found.losses[i], want.losses[i], tolerance::kFp8ModelLoss * want.losses[i]) << i;
        EXPECT_NEAR(found.losses[i], in_bf16.losses[i], tolerance::kFp8ModelLoss * in_bf16.losses[i]) << i;
      }
      testing::expect_same_bits(testing::run_steps(device, recorded, 10, make), found);
      testing::expect_plan_is_the_step(device, on_gpu);
      on_gpu.keep = kKeepOutputs;
      testing::expect_same_bits(testing::run_steps(device, on_gpu, 10, make), found);
      testing::expect_plan_is_the_step(device, on_gpu);
    }
}

// Frozen weights that have FP8 values alone. The first step has the losses of training all weights in FP8.
TEST_F(Fp8Test, AdaptersOnTopOfFp8ValuesTrain) {
  if (!multiplies()) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  const DeviceTraits device = cuda().backend().traits();
  for (const ModelConfig& model : testing::models_with_adapters(128, 8)) {
    SCOPED_TRACE(fmt::format("{}, {}", name_of(model.mlp), text_of(model.lora)));
    const Fp8Config config{.edges = true, .head = true};
    testing::expect_first_step_of_fp8_training(device, model, config, DType::kBF16, tolerance::kBf16ModelLoss,
                                               tolerance::kFp8GradientInBf16);
    testing::expect_weights_are_those_kept(device, model, config, DType::kBF16);
    RunShape shape = testing::lora_fp8_shape(model, config, DType::kBF16);
    testing::expect_plan_is_the_step(device, shape);
    shape.offload.weights = true;
    testing::expect_plan_is_the_step(device, shape);
  }
}

// Stored FP8 values, whole or copied from the host, in graphs or not: the same bits
TEST_F(Fp8Test, StoredValuesChangeNoBit) {
  if (!multiplies()) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  for (const testing::Trained8& trained : testing::kTrained) {
    SCOPED_TRACE(trained.name);
    RunShape shape = testing::stored_shape(trained, testing::shared_shape(1), cuda().backend().traits());
    const auto losses = [&](bool graphs, const Offload& offload) {
      shape.cuda_graphs = graphs, shape.offload = offload,
      shape.poison = offload ? Poison::kYes : Poison::kNo;
      return testing::run_shared({}, {.device = cuda().backend().traits(), .shape = shape, .steps = 4});
    };
    const std::vector<double> whole = losses(false, {});
    EXPECT_EQ(losses(true, {}), whole);
    EXPECT_EQ(losses(false, {.weights = true}), whole);
  }
}

// Rounded by what writes x and dy, or by passes of their own: LayerNorm with GELU, RMSNorm with SwiGLU
TEST_F(Fp8Test, RoundsWhereItWritesToTheSameBits) {
  if (!multiplies()) GTEST_SKIP() << "FP8 needs compute capability 8.9";
  const ModelConfig gpt2{.vocab_size = 61,
                         .context = 32,
                         .layers = 3,
                         .heads = 1,
                         .channels = 64,
                         .kv_heads = 1,
                         .head_dim = 64};
  struct Case {
    Keep keep;
    double dropped;
  };
  for (const ModelConfig& model : {gpt2, testing::with_qwen3_parts(gpt2)})
    for (const auto& [keep, dropped] : {Case{{}, 0}, Case{{}, 0.1}, Case{kKeepOutputs, 0}}) {
      SCOPED_TRACE(text_of(keep) + fmt::format(", dropout {}", dropped));
      RunShape shape{.model = model,
                     .micro_batch = 1,
                     .micro_steps = 2,
                     .sequence_length = 32,
                     .fp8 = {.gemm_dtype = GemmDtype::kFp8, .edges = true, .head = true, .dw = true}};
      shape.dtype = DType::kBF16;
      shape.keep = keep;
      shape.model.dropout = {.embedding = dropped, .residual = dropped, .attention = dropped};
      testing::HostTensors make;
      const auto steps = [&](bool read_again) {
        return testing::run_steps(cuda().backend().traits(), shape, 3, make, 1e-3,
                                  [&](TrainState& state) { state.fp8().read_again(read_again); });
      };
      testing::expect_same_bits(steps(false), steps(true));
    }
}

}  // namespace
}  // namespace tessera
