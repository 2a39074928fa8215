// RMSNorm on CUDA against the CPU backend.
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

using CudaRmsNorm = CudaTest;

constexpr float kEpsilon = 1e-5f;

TEST_F(CudaRmsNorm, IsThatOfTheCpu) {
  for (const DType dtype : kReal) {
    // The last three have more groups of rows than the device holds blocks.
    std::vector<std::pair<int64_t, int64_t>> sizes = {{1, 8},     {65, 8},     {129, 48},    {130, 1600},
                                                      {9, 4096},  {33, 2056},  {300, 104},   {127, 576},
                                                      {63, 1536}, {20001, 64}, {3000, 2048}, {1500, 4096}};
    if (dtype == DType::kF32) sizes.insert(sizes.end(), {{3, 4}, {65, 100}});
    if (dtype == DType::kBF16) sizes.push_back({5, 8192});
    for (const auto& [N, C] : sizes) {
      SCOPED_TRACE(fmt::format("{} N {} C {}", name_of(dtype), N, C));
      const Twin x = input(dtype, {N, C}, 1, 0.5f), weight = input(dtype, {C});
      const Twin y = output(dtype, {N, C}), rstd = output(DType::kF32, {N});
      run_on_both({y, rstd}, [&](auto on) {
        return RmsNormForward{
            .x = on(x), .weight = on(weight), .y = on(y), .rstd = on(rstd), .epsilon = kEpsilon};
      });
      expect_same(y, "y");
      expect_same(rstd, "rstd");

      const float offset = N % 2 == 1 ? 0.0f : 1.0f;
      const Twin residual = input(dtype, {N, C});
      run_on_both({y, rstd}, [&](auto on) {
        return RmsNormForward{.x = on(x),
                              .weight = on(weight),
                              .y = on(y),
                              .rstd = on(rstd),
                              .epsilon = kEpsilon,
                              .offset = offset,
                              .add = on(residual)};
      });
      expect_same(y, "y with a residual");

      const Twin dy = input(dtype, {N, C}), add = input(dtype, {N, C}), dweight = input(dtype, {C}, 10),
                 dx_sum = input(dtype, {C}, 10);
      enum { kNoAdd, kAdd, kAddInPlace, kOverDy };
      for (const int variant : {kNoAdd, kAdd, kAddInPlace, kOverDy}) {
        SCOPED_TRACE(variant);
        const Twin dx = variant == kAddInPlace ? add : variant == kOverDy ? dy : output(dtype, {N, C});
        const Twin addend = variant == kAdd || variant == kAddInPlace ? add : Twin{};
        const Twin sum = variant == kAdd ? Twin{} : dx_sum;
        run_on_both({dx, dweight, dx_sum}, [&](auto on) {
          return RmsNormBackward{.dy = on(dy),
                                 .x = on(x),
                                 .weight = on(weight),
                                 .rstd = on(rstd),
                                 .offset = offset,
                                 .dx = on(dx),
                                 .dweight = on(dweight),
                                 .add = on(addend),
                                 .dx_sum = on(sum)};
        });
        expect_same(dx, "dx");
        expect_same(dweight, "dweight", 1 + variant);  // one rounding more for each time that was added
        expect_same(dx_sum, "dx_sum", 1 + variant);
      }
    }
  }
}

// Rows of one warp, of several packs of it, and of several warps; the last has more rows than teams.
TEST_F(CudaRmsNorm, OfHeadsIsThatOfTheCpu) {
  struct Case {
    int64_t B, T, D, heads, first, count;
  };
  for (const DType dtype : kReal)
    for (const Case& c : {Case{1, 1, 8, 1, 0, 1},
                          {2, 31, 16, 5, 1, 3},
                          {1, 65, 64, 14, 0, 9},
                          {3, 7, 40, 12, 4, 8},
                          {2, 9, 128, 40, 8, 32},
                          {5, 501, 32, 6, 0, 4}}) {
      SCOPED_TRACE(fmt::format("{} B {} T {} D {}, {} heads", name_of(dtype), c.B, c.T, c.D, c.count));
      const int64_t N = c.B * c.T, C = c.count * c.D;
      const Twin x = input(dtype, {c.B, c.T, c.heads, c.D}, 2, 0.5f), weight = input(dtype, {C}),
                 y = input(dtype, {c.B, c.T, c.count + 2, c.D}), rstd = output(DType::kF32, {N}),
                 dy = input(dtype, {c.B, c.T, c.heads, c.D}), dweight = input(dtype, {C}, 10),
                 dx = input(dtype, {c.B, c.T, c.count + 1, c.D});
      run_on_both({y, rstd}, [&](auto on) {
        return HeadsNormForward{.x = {on(x), c.first, c.count},
                                .y = {on(y), 2, c.count},
                                .weight = on(weight),
                                .rstd = on(rstd),
                                .epsilon = kEpsilon,
                                .offset = 1};
      });
      expect_same(y, "y");
      expect_same(rstd, "rstd");
      const auto backward = [&](const Twin& to, int64_t first) {
        run_on_both({to, dweight}, [&](auto on) {
          return HeadsNormBackward{.dy = {on(dy), c.first, c.count},
                                   .x = {on(x), c.first, c.count},
                                   .weight = on(weight),
                                   .rstd = on(rstd),
                                   .offset = 1,
                                   .dx = {on(to), first, c.count},
                                   .dweight = on(dweight)};
        });
        expect_same(to, "dx");
      };
      backward(dx, 1);
      backward(dy, c.first);
      expect_same(dweight, "dweight", 2);
    }
  const Twin odd = input(DType::kBF16, {1, 3, 5, 4}), to = input(DType::kBF16, {1, 3, 2, 4}),
             weight = input(DType::kBF16, {8}), rstd = output(DType::kF32, {3});
  EXPECT_NE(message_of([&] {
              cuda().run(HeadsNormForward{.x = {odd.cuda, 0, 2},
                                          .y = {to.cuda, 0, 2},
                                          .weight = weight.cuda,
                                          .rstd = rstd.cuda,
                                          .epsilon = kEpsilon});
            }).find("multiple of 8 in bf16"),
            std::string::npos);
}

TEST_F(CudaRmsNorm, OfZerosIsZero) {
  for (const DType dtype : kReal) {
    const Twin x = with_values(dtype, {5, 64}, [](int64_t) { return 0.0f; }), weight = input(dtype, {64}),
               y = output(dtype, {5, 64}), rstd = output(DType::kF32, {5});
    cuda().run(RmsNormForward{
        .x = x.cuda, .weight = weight.cuda, .y = y.cuda, .rstd = rstd.cuda, .epsilon = kEpsilon});
    for (const float value : floats_of(y.cuda)) ASSERT_EQ(value, 0);
    for (const float value : floats_of(rstd.cuda)) ASSERT_NEAR(value * std::sqrt(kEpsilon), 1, 1e-6);
  }
}

TEST_F(CudaRmsNorm, RefusesWhatItCannotServe) {
  const auto refusal = [&](DType dtype, int64_t C) {
    const Twin x = input(dtype, {3, C}), weight = input(dtype, {C}), rstd = output(DType::kF32, {3});
    return message_of([&] {
      cuda().run(RmsNormForward{
          .x = x.cuda, .weight = weight.cuda, .y = x.cuda, .rstd = rstd.cuda, .epsilon = kEpsilon});
    });
  };
  EXPECT_NE(refusal(DType::kBF16, 100).find("multiple of 8 in bf16"), std::string::npos);
  EXPECT_NE(refusal(DType::kF32, 102).find("multiple of 4 in fp32"), std::string::npos);
  EXPECT_NE(refusal(DType::kBF16, 8200).find("8192 channels in bf16, found 8200"), std::string::npos);
}

}  // namespace
}  // namespace tessera
