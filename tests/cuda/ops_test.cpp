// Every operation on CUDA against the CPU backend, through the same argument structs.
#include "kernels/gemm/peak.h"
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

constexpr int64_t kRows[] = {1, 2, 63, 65, 127, 129, 1000};

using CudaOps = CudaTest;

TEST_F(CudaOps, CopyConvertsInEveryDirection) {
  for (const int64_t count : {1, 7, 1000, 100'003}) {
    const Twin f32 = input(DType::kF32, {count});
    const Twin bf16 = output(DType::kBF16, {count});
    cuda().run(Copy{f32.cpu, bf16.cuda});  // host fp32 -> device bf16
    const Twin back = output(DType::kF32, {count});
    cuda().run(Copy{bf16.cuda, back.cuda});  // device bf16 -> device fp32
    const Twin again = output(DType::kBF16, {count});
    cuda().run(Copy{back.cuda, again.cuda});                  // device fp32 -> device bf16
    const std::vector<float> values = floats_of(again.cuda);  // device bf16 -> host fp32
    for (int64_t i = 0; i < count; ++i)
      ASSERT_EQ(values[i], float_from_bf16(bf16_from_float(f32.cpu.as<float>()[i]))) << i;
    cuda().run(FillZero{again.cuda});
    for (const float value : floats_of(again.cuda)) ASSERT_EQ(value, 0);
  }
  const Twin three = input(DType::kF32, {3}), four = input(DType::kF32, {4}), index = random_indices({4}, 9);
  EXPECT_NE(message_of([&] {
              cuda().run(Copy{three.cpu, four.cuda});
            }).find("equal element counts"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              cuda().run(Copy{index.cuda, four.cuda});
            }).find("cannot convert"),
            std::string::npos);
}

TEST_F(CudaOps, Accumulate) {
  for (const DType dtype : kReal)
    for (const int64_t count : {1, 7, 1000, 1024, 100'003}) {
      const Twin x = input(dtype, {count}), y = input(dtype, {count});
      const std::vector<float> before = floats_of(y.cuda), added = floats_of(x.cuda);
      cuda().run(Accumulate{.x = x.cuda, .y = y.cuda});
      const std::vector<float> after = floats_of(y.cuda);
      for (size_t i = 0; i < after.size(); ++i) {
        const float sum = before[i] + added[i];
        ASSERT_EQ(after[i], dtype == DType::kF32 ? sum : float_from_bf16(bf16_from_float(sum))) << i;
      }
    }
}

TEST_F(CudaOps, Embedding) {
  struct Case {
    int64_t B, T, C, V;
    bool one_token_owns_most = false;
  };
  std::vector<Case> cases = {{3, 5, 48, 2},
                             {2, 65, 768, 50257},
                             {4, 250, 104, 256, true},
                             {1, 1000, 64, 300, true},
                             {10, 100, 2056, 7}};
  for (const int64_t N : kRows) cases.push_back({1, N, 64, 11});
  for (const DType dtype : kReal) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} B {} T {} C {} V {}", name_of(dtype), c.B, c.T, c.C, c.V));
      Twin tokens = random_indices({c.B, c.T}, c.V);
      if (c.one_token_owns_most)
        tokens =
            indices({c.B, c.T}, [&](int64_t i) { return static_cast<int32_t>(i % 10 ? c.V / 2 : i % c.V); });
      const Twin table = input(dtype, {c.V, c.C}), positions = input(dtype, {c.T + 3, c.C});
      const Twin y = output(dtype, {c.B, c.T, c.C});
      run_on_both({y}, [&](auto on) {
        return EmbeddingForward{
            .tokens = on(tokens), .token_table = on(table), .position_table = on(positions), .y = on(y)};
      });
      expect_same(y, "y");

      const Twin dy = input(dtype, {c.B, c.T, c.C});
      run_on_both({table, positions}, [&](auto on) {
        return EmbeddingBackward{.tokens = on(tokens),
                                 .dy = on(dy),
                                 .d_token_table = on(table),
                                 .d_position_table = on(positions)};
      });
      expect_same(table, "d_token_table");
      expect_same(positions, "d_position_table");
    }
  }
}

TEST_F(CudaOps, LayerNorm) {
  for (const DType dtype : kReal) {
    std::vector<std::pair<int64_t, int64_t>> sizes = {{65, 8},   {129, 48},  {130, 1600},
                                                      {9, 4096}, {33, 2056}, {300, 104}};
    if (dtype == DType::kF32) sizes.insert(sizes.end(), {{3, 4}, {65, 100}});
    for (const int64_t N : kRows) sizes.insert(sizes.end(), {{N, 64}, {N, 768}});
    for (const auto& [N, C] : sizes) {
      SCOPED_TRACE(fmt::format("{} N {} C {}", name_of(dtype), N, C));
      const Twin x = input(dtype, {N, C}, 1, 5), weight = input(dtype, {C}), bias = input(dtype, {C});
      const Twin y = output(dtype, {N, C}), mean = output(DType::kF32, {N}), rstd = output(DType::kF32, {N});
      run_on_both({y, mean, rstd}, [&](auto on) {
        return LayerNormForward{.x = on(x),
                                .weight = on(weight),
                                .bias = on(bias),
                                .y = on(y),
                                .mean = on(mean),
                                .rstd = on(rstd)};
      });
      expect_same(y, "y");
      expect_same(mean, "mean");
      expect_same(rstd, "rstd");

      const Twin dy = input(dtype, {N, C}), add = input(dtype, {N, C});
      const Twin dweight = input(dtype, {C}, 10), dbias = input(dtype, {C}, 10),
                 dx_sum = input(dtype, {C}, 10);
      enum { kNoAdd, kAdd, kAddInPlace };
      for (const int variant : {kNoAdd, kAdd, kAddInPlace}) {
        SCOPED_TRACE(variant);
        const Twin dx = variant == kAddInPlace ? add : output(dtype, {N, C});
        const Twin addend = variant == kNoAdd ? Twin{} : add, sum = variant == kAdd ? Twin{} : dx_sum;
        run_on_both({dx, dweight, dbias, dx_sum}, [&](auto on) {
          return LayerNormBackward{.dy = on(dy),
                                   .x = on(x),
                                   .weight = on(weight),
                                   .mean = on(mean),
                                   .rstd = on(rstd),
                                   .dx = on(dx),
                                   .dweight = on(dweight),
                                   .dbias = on(dbias),
                                   .add = on(addend),
                                   .dx_sum = on(sum)};
        });
        expect_same(dx, "dx");
        expect_same(dweight, "dweight", 1 + variant);  // one rounding more for each time that was added
        expect_same(dbias, "dbias", 1 + variant);
        expect_same(dx_sum, "dx_sum", 1 + variant);
      }
    }
  }
}

TEST_F(CudaOps, LayerNormOfEqualValues) {
  for (const DType dtype : kReal) {
    const Twin x = with_values(dtype, {5, 64}, [](int64_t i) { return static_cast<float>(i / 64) * 1000; });
    const Twin weight = input(dtype, {64}), bias = input(dtype, {64}), y = output(dtype, {5, 64});
    const Twin mean = output(DType::kF32, {5}), rstd = output(DType::kF32, {5});
    cuda().run(LayerNormForward{.x = x.cuda,
                                .weight = weight.cuda,
                                .bias = bias.cuda,
                                .y = y.cuda,
                                .mean = mean.cuda,
                                .rstd = rstd.cuda});
    const std::vector<float> got = floats_of(y.cuda);
    for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], bias.cpu.as<float>()[i % 64]);
  }
}

struct LinearSize {
  int64_t N, C, O;
};
std::vector<LinearSize> linear_sizes() {
  std::vector<LinearSize> sizes = {{130, 768, 2304}, {65, 100, 36}, {63, 50, 33}, {7, 1, 1}, {129, 8, 1000}};
  for (const int64_t N : kRows) sizes.push_back({N, 64, 192});
  return sizes;
}

TEST_F(CudaOps, LinearForward) {
  for (const DType dtype : kReal) {
    for (const auto& [N, C, O] : linear_sizes()) {
      SCOPED_TRACE(fmt::format("{} N {} C {} O {}", name_of(dtype), N, C, O));
      const Twin x = input(dtype, {N, C}),
                 weight = input(dtype, {O, C}, 1 / std::sqrt(static_cast<float>(C)));
      const Twin bias = input(dtype, {O});
      enum { kPlain, kBias, kBiasAdd, kAddInPlace, kGelu, kGeluWithoutBias };
      for (const int variant : {kPlain, kBias, kBiasAdd, kAddInPlace, kGelu, kGeluWithoutBias}) {
        SCOPED_TRACE(variant);
        const bool gelu = variant == kGelu || variant == kGeluWithoutBias;
        const Twin y = variant == kAddInPlace ? input(dtype, {N, O}) : output(dtype, {N, O});
        const Twin add = variant == kBiasAdd ? input(dtype, {N, O}) : variant == kAddInPlace ? y : Twin{};
        const Twin b = variant == kPlain || variant == kGeluWithoutBias ? Twin{} : bias;
        const Twin pre_activation = gelu ? output(dtype, {N, O}) : Twin{};
        std::vector<Twin> results = {y};
        if (gelu) results.push_back(pre_activation);
        run_on_both(results, [&](auto on) {
          return LinearForward{.x = on(x),
                               .weight = on(weight),
                               .y = on(y),
                               .bias = on(b),
                               .add = on(add),
                               .pre_activation = on(pre_activation)};
        });
        expect_same(y, "y");
        if (gelu) expect_same(pre_activation, "pre_activation");
      }
    }
  }
}

TEST_F(CudaOps, LinearBackward) {
  for (const DType dtype : kReal) {
    for (const auto& [N, C, O] : linear_sizes()) {
      SCOPED_TRACE(fmt::format("{} N {} C {} O {}", name_of(dtype), N, C, O));
      const Twin x = input(dtype, {N, C}), weight = input(dtype, {O, C}), dy = input(dtype, {N, O});
      const Twin dweight = input(dtype, {O, C}), dbias = input(dtype, {O}), dx_sum = input(dtype, {C});
      for (const bool gelu : {false, true}) {
        SCOPED_TRACE(gelu ? "gelu" : "no gelu");
        const Twin dx = output(dtype, {N, C});
        const Twin pre_activation = gelu ? input(dtype, {N, C}, 2) : Twin{};
        run_on_both({dx, dweight, dbias, dx_sum}, [&](auto on) {
          return LinearBackward{.dy = on(dy),
                                .x = on(x),
                                .weight = on(weight),
                                .dx = on(dx),
                                .dweight = on(dweight),
                                .dbias = gelu ? Tensor{} : on(dbias),
                                .dx_sum = gelu ? on(dx_sum) : Tensor{},
                                .pre_activation = on(pre_activation)};
        });
        expect_same(dx, "dx");
        expect_same(dweight, "dweight", gelu ? 2 : 1);  // added to twice by then
        expect_same(dbias, "dbias");
      }
    }
  }
}

TEST_F(CudaOps, LinearBackwardInPlaceHasTheSameBits) {
  for (const DType dtype : kReal)
    for (const auto& [N, C, O] : linear_sizes())
      for (const bool gelu : {false, true}) {
        SCOPED_TRACE(fmt::format("{} N {} C {} O {}{}", name_of(dtype), N, C, O, gelu ? " gelu" : ""));
        const Twin x = input(dtype, {N, C}), weight = input(dtype, {O, C}), dy = input(dtype, {N, O});
        const Twin pre_activation = gelu ? input(dtype, {N, C}, 2) : Twin{};
        std::vector<std::vector<char>> apart;
        for (const bool in_place : {false, true}) {
          const Twin dx = output(dtype, {N, C}), dweight = output(dtype, {O, C}), dbias = output(dtype, {O});
          cuda().run(FillZero{dweight.cuda}), cuda().run(FillZero{dbias.cuda});
          if (in_place) cuda().run(Copy{x.cuda, dx.cuda});
          run_twice({dx, dweight, dbias}, [&] {
            cuda().run(LinearBackward{.dy = dy.cuda,
                                      .x = in_place ? dx.cuda : x.cuda,
                                      .weight = weight.cuda,
                                      .dx = dx.cuda,
                                      .dweight = dweight.cuda,
                                      .dbias = dbias.cuda,
                                      .pre_activation = pre_activation.cuda});
          });
          const std::vector<std::vector<char>> results = {bytes_of(dx.cuda), bytes_of(dweight.cuda),
                                                          bytes_of(dbias.cuda)};
          if (in_place) {
            EXPECT_EQ(results, apart);
          }
          apart = results;
        }
      }
}

TEST_F(CudaOps, CrossEntropy) {
  struct Case {
    int64_t N, V, padded;
    float spread = 3, cap = 0;
  };
  std::vector<Case> cases = {
      {9, 257, 264}, {3, 50257, 50304}, {2, 130'000, 130'048}, {5, 64, 64, 1e4f}, {4, 8, 2048}};
  for (const int64_t N : kRows) cases.push_back({N, 5, 8});
  for (const int64_t V : {257, 50257, 130'000}) cases.push_back({3, V, (V + 127) / 128 * 128, 12, 15});
  cases.push_back({5, 64, 64, 1e4f, 15});
  for (const DType dtype : kReal) {
    for (const Case& c : cases) {
      SCOPED_TRACE(fmt::format("{} N {} V {} of {}, cap {}", name_of(dtype), c.N, c.V, c.padded, c.cap));
      const Twin targets = random_indices({c.N}, c.V);
      const Twin logits = input(dtype, {c.N, c.padded}, c.spread), losses = output(DType::kF32, {c.N});
      const Twin scale = with_values(DType::kF32, {1}, [](int64_t) { return 0.25f; });
      const Twin weights = input(DType::kF32, {c.N});
      const auto args = [&](auto on, bool want_gradient) {
        return CrossEntropy{.logits = on(logits),
                            .targets = on(targets),
                            .losses = on(losses),
                            .vocab_size = c.V,
                            .want_gradient = want_gradient,
                            .cap = c.cap,
                            .gradient_scale = on(scale),
                            .weights = c.N % 2 == 0 ? Tensor{} : on(weights)};
      };
      const std::vector<char> before = bytes_of(logits.cuda);
      run_on_both({losses}, [&](auto on) { return args(on, false); });
      expect_same(losses, "losses without gradient");
      EXPECT_EQ(before, bytes_of(logits.cuda)) << "logits changed without a gradient wanted";

      run_on_both({logits, losses}, [&](auto on) { return args(on, true); });
      expect_same(losses, "losses");
      expect_same(logits, "gradient");
      const std::vector<float> gradient = floats_of(logits.cuda);
      for (int64_t n = 0; n < c.N; ++n)
        for (int64_t v = c.V; v < c.padded; ++v) ASSERT_EQ(gradient[n * c.padded + v], 0) << "padding";
    }
  }
}

TEST_F(CudaOps, CapLogits) {
  for (const DType dtype : kReal)
    for (const auto& [N, padded] : {std::pair{1, 8}, {3, 128}, {17, 50304}})
      for (const float spread : {0.01f, 12.0f, 1e4f}) {
        SCOPED_TRACE(fmt::format("{} N {} of {}, spread {}", name_of(dtype), N, padded, spread));
        const Twin logits = input(dtype, {N, padded}, spread);
        run_on_both({logits}, [&](auto on) { return CapLogits{.logits = on(logits), .cap = 15}; });
        expect_same(logits, "capped logits");
      }
}

// Every third row has no target: loss and gradient are exactly 0, even where its logits are NaN.
TEST_F(CudaOps, CrossEntropyOfNoTargetIsZero) {
  struct Case {
    int64_t N, V, padded;
  };
  for (const DType dtype : kReal)
    for (const Case& c : {Case{9, 257, 264}, Case{4, 50257, 50304}, Case{65, 5, 8}}) {
      SCOPED_TRACE(fmt::format("{} N {} V {} of {}", name_of(dtype), c.N, c.V, c.padded));
      const Twin random = random_indices({c.N}, c.V), losses = output(DType::kF32, {c.N}),
                 targets = indices(
                     {c.N}, [&](int64_t n) { return n % 3 == 1 ? kNoTarget : random.cpu.as<int32_t>()[n]; });
      const Twin logits = with_values(dtype, {c.N, c.padded}, [&](int64_t i) {
        return i == c.padded ? NAN : static_cast<float>(i * 37 % 101) / 20;
      });
      const Twin scale = with_values(DType::kF32, {1}, [](int64_t) { return 0.25f; });
      for (const bool want_gradient : {false, true}) {
        run_on_both({logits, losses}, [&](auto on) {
          return CrossEntropy{.logits = on(logits),
                              .targets = on(targets),
                              .losses = on(losses),
                              .vocab_size = c.V,
                              .want_gradient = want_gradient,
                              .gradient_scale = on(scale)};
        });
        expect_same(losses, "losses");
      }
      expect_same(logits, "gradient");
      const std::vector<float> gradient = floats_of(logits.cuda), loss = floats_of(losses.cuda);
      for (int64_t n = 1; n < c.N; n += 3) {
        ASSERT_EQ(loss[static_cast<size_t>(n)], 0);
        for (int64_t v = 0; v < c.padded; ++v) ASSERT_EQ(gradient[static_cast<size_t>(n * c.padded + v)], 0);
      }
    }
}

TEST_F(CudaOps, GlobalNorm) {
  for (const DType dtype : kReal) {
    std::vector<Twin> twins;
    std::vector<Tensor> cpu_tensors, cuda_tensors;
    for (const int64_t count : {1, 7, 768, 32'769, 3'000'001}) {
      twins.push_back(input(dtype, {count}));
      cpu_tensors.push_back(twins.back().cpu), cuda_tensors.push_back(twins.back().cuda);
    }
    const Twin norm = output(DType::kF32, {1});
    run_on_both({norm}, [&](auto on) {
      return GlobalNorm{.tensors = on(cpu_tensors, cuda_tensors), .norm = on(norm)};
    });
    expect_same(norm, "norm");
  }
}

TEST_F(CudaOps, RefusesWhatItCannotServe) {
  const Twin x = input(DType::kBF16, {3, 100}), weight = input(DType::kBF16, {100}),
             y = output(DType::kBF16, {3, 100});
  const Twin mean = output(DType::kF32, {3}), wrong = output(DType::kF32, {4});
  const auto normalise = [&](const Tensor& statistics) {
    return message_of([&] {
      cuda().run(LayerNormForward{.x = x.cuda,
                                  .weight = weight.cuda,
                                  .bias = weight.cuda,
                                  .y = y.cuda,
                                  .mean = statistics,
                                  .rstd = mean.cuda});
    });
  };
  EXPECT_NE(normalise(mean.cuda).find("multiple of 8 in bf16"), std::string::npos) << normalise(mean.cuda);
  EXPECT_NE(normalise(wrong.cuda).find("mean"), std::string::npos) << normalise(wrong.cuda);
  EXPECT_NE(normalise(mean.cpu).find("on cuda"), std::string::npos) << normalise(mean.cpu);

  const Twin logits = input(DType::kF32, {2, 5}), targets = random_indices({2}, 5),
             losses = output(DType::kF32, {2});
  EXPECT_NE(message_of([&] {
              cuda().run(CrossEntropy{.logits = logits.cuda,
                                      .targets = targets.cuda,
                                      .losses = losses.cuda,
                                      .vocab_size = 5,
                                      .want_gradient = true});
            }).find("multiple of 4 in fp32"),
            std::string::npos);

  const std::unique_ptr<Backend> unprovided = make_cuda_backend();
  EXPECT_NE(message_of([&] {
              Stream(*unprovided).run(GlobalNorm{.tensors = {&x.cuda, 1}, .norm = mean.cuda.rows(0, 1)});
            }).find("give the stream workspace_bytes()"),
            std::string::npos);
}

TEST_F(CudaOps, MeasuresTheGemmPeak) {
  Arena arena = Arena::cuda();
  const double bf16 = measure_gemm_flops(cuda(), arena);
  EXPECT_GT(bf16, 1e12);
  if (cuda().backend().traits().arch >= 89) {
    EXPECT_GT(measure_gemm_flops(cuda(), arena, /*fp8=*/true), bf16);
  }
  EXPECT_EQ(arena.ledger().current_bytes(), 0);
}

}  // namespace
}  // namespace tessera
