// Our matrix products for Hopper (kernels/gemm/sm90) in the operations that use them, against the CPU
// backend.
#include <unistd.h>

#include <filesystem>
#include <regex>
#include <sstream>

#include "kernels/gemm/linear_gemms.h"
#include "kernels/gemm/sm90/problem.h"
#include "tests/cuda/twin.h"
#include "tests/process.h"

namespace tessera {
namespace {

struct GemmSize {
  int64_t N, C, O;
};
// Rows, summed columns and results that are no multiples of a tile; tiles for several rounds of all
// multiprocessors; sums of one step and of many
constexpr GemmSize kGemmSizes[] = {{1, 8, 8},        {2, 72, 3072},  {63, 64, 64},    {65, 136, 200},
                                   {129, 768, 2304}, {300, 40, 776}, {257, 4096, 72}, {33001, 72, 200}};

class CudaOwnGemms : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    if (!gemm::available()) GTEST_SKIP() << "no GPU of compute capability 9.0, or built without 90a";
    library().take_from(GemmSource::kTessera);
  }
  GemmLibrary& library() { return *cuda().backend().gemms(); }
  void expect_own(const Gemm& gemm) {
    EXPECT_EQ(library().algorithms(key_of(gemm), 8), std::vector{GemmAlgorithm{.id = GemmAlgorithm::kOwn}})
        << describe(key_of(gemm));
  }
};

std::string text_of(const GemmSize& size) { return fmt::format("N {} C {} O {}", size.N, size.C, size.O); }

TEST_F(CudaOwnGemms, LinearForward) {
  constexpr DType kType = DType::kBF16;
  for (const GemmSize& size : kGemmSizes) {
    SCOPED_TRACE(text_of(size));
    const auto [N, C, O] = size;
    const Twin x = input(kType, {N, C}), weight = input(kType, {O, C}, 1 / std::sqrt(static_cast<float>(C)));
    for (const bool with_bias : {false, true}) {
      const Twin bias = with_bias ? input(kType, {O}) : Twin{};
      enum { kPlain, kAdd, kAddInPlace };
      for (const int variant : {kPlain, kAdd, kAddInPlace}) {
        SCOPED_TRACE(fmt::format("{}{}", with_bias ? "bias " : "", variant));
        const Twin y = variant == kAddInPlace ? input(kType, {N, O}) : output(kType, {N, O});
        const Twin add = variant == kAdd ? input(kType, {N, O}) : variant == kAddInPlace ? y : Twin{};
        const auto make = [&](auto on) {
          return LinearForward{
              .x = on(x), .weight = on(weight), .y = on(y), .bias = on(bias), .add = on(add)};
        };
        expect_own(gemms_of(make(OnCuda{})).fused);
        // Few rows have a kernel of their own, which is asked first: these are products of a training step.
        if (const auto problem = gemm::problem_of(gemms_of(make(OnCuda{})).fused)) {
          cpu().run(make(OnCpu{}));
          run_twice({y}, [&] { gemm::run(*problem, 132, cuda().queue()); });
          expect_same(y, "y");
        }
      }
      for (const Activation activation : kActivations) {
        SCOPED_TRACE(name_of(activation));
        const Twin y = output(kType, {N, O}), pre_activation = output(kType, {N, O});
        run_on_both({y, pre_activation}, [&](auto on) {
          return LinearForward{.x = on(x),
                               .weight = on(weight),
                               .y = on(y),
                               .bias = on(bias),
                               .pre_activation = on(pre_activation),
                               .activation = activation};
        });
        expect_same(y, "y");
        expect_same(pre_activation, "pre_activation");
      }
    }
  }
}

TEST_F(CudaOwnGemms, LinearBackward) {
  constexpr DType kType = DType::kBF16;
  for (const GemmSize& size : kGemmSizes) {
    SCOPED_TRACE(text_of(size));
    const auto [N, O, C] = size;  // dx is [N, C], a sum over O
    const Twin weight = input(kType, {O, C}), dy = input(kType, {N, O}), x = input(kType, {N, C}),
               pre_activation = input(kType, {N, C}, 2);
    const auto make = [&](auto on, const Twin& dx, const Twin& before, Activation activation) {
      return LinearBackward{.dy = on(dy),
                            .x = on(x),
                            .weight = on(weight),
                            .dx = on(dx),
                            .pre_activation = on(before),
                            .activation = activation};
    };
    const Twin plain = output(kType, {N, C});
    run_on_both({plain}, [&](auto on) { return make(on, plain, Twin{}, Activation::kGelu); });
    expect_same(plain, "dx");
    expect_own(gemms_of(make(OnCuda{}, plain, Twin{}, Activation::kGelu)).dx);
    for (const Activation activation : kActivations) {
      SCOPED_TRACE(name_of(activation));
      const Twin dx = output(kType, {N, C}), dx_sum = input(kType, {C});
      run_on_both({dx, dx_sum}, [&](auto on) {
        LinearBackward op = make(on, dx, pre_activation, activation);
        op.dx_sum = on(dx_sum);
        return op;
      });
      expect_same(dx, "dx");
      expect_same(dx_sum, "dx_sum");
    }
    expect_own(*gemms_of(make(OnCuda{}, plain, pre_activation, Activation::kGelu)).fused_dx);
  }
}

// The gradients of a weight and of a bias, or of a part of it: sums over all rows, some of them in parts
TEST_F(CudaOwnGemms, SumsOverAllRows) {
  constexpr DType kType = DType::kBF16;
  constexpr GemmSize kMore[] = {{515, 776, 2304}, {1000, 520, 264}, {70, 2056, 2312}};
  std::vector<GemmSize> sizes(std::begin(kGemmSizes), std::end(kGemmSizes));
  sizes.insert(sizes.end(), std::begin(kMore), std::end(kMore));
  for (const auto& [N, C, O] : sizes) {
    SCOPED_TRACE(text_of({N, C, O}));
    const Twin dy = input(kType, {N, O}), x = input(kType, {N, C}), weight = input(kType, {O, C}),
               dx = output(kType, {N, C});
    for (const int64_t summed : {int64_t{0}, O, (O + 2) / 3}) {
      const bool accumulate = summed != O;
      SCOPED_TRACE(summed);
      const Twin dweight = input(kType, {O, C}), dbias = summed > 0 ? input(kType, {summed}) : Twin{};
      const auto make = [&](auto on) {
        return LinearBackward{.dy = on(dy),
                              .x = on(x),
                              .weight = on(weight),
                              .dx = on(dx),
                              .dweight = on(dweight),
                              .dbias = on(dbias),
                              .accumulate = accumulate};
      };
      expect_own(*gemms_of(make(OnCuda{})).dweight);
      run_on_both(summed > 0 ? std::vector{dweight, dbias} : std::vector{dweight}, make);
      expect_same(dweight, "dweight");
      if (summed > 0) expect_same(dbias, "dbias");
    }
  }
}

// Each row of partial sums is that of the rows of d, as they were before they were rounded.
TEST_F(CudaOwnGemms, SumsOverRows) {
  constexpr DType kType = DType::kBF16;
  for (const GemmSize& size : kGemmSizes) {
    SCOPED_TRACE(text_of(size));
    const auto [N, O, C] = size;
    const Twin weight = input(kType, {O, C}), dy = input(kType, {N, O}), x = input(kType, {N, C}),
               pre_activation = input(kType, {N, C}, 2), dx = output(kType, {N, C});
    const int64_t rows = gemm::partial_rows(N);
    const Twin partials = output(DType::kF32, {rows, C});
    const LinearBackward op{.dy = dy.cuda,
                            .x = x.cuda,
                            .weight = weight.cuda,
                            .dx = dx.cuda,
                            .pre_activation = pre_activation.cuda};
    auto problem = gemm::problem_of(*gemms_of(op).fused_dx);
    ASSERT_TRUE(problem.has_value());
    problem->partials = partials.cuda.as<float>();
    run_twice({dx, partials}, [&] { gemm::run(*problem, 132, cuda().queue()); });
    const std::vector<float> d = floats_of(dx.cuda), sums = floats_of(partials.cuda);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < C; ++c) {
        double sum = 0, magnitude = 0;
        for (int64_t n = r * gemm::kRowsOfPartial; n < std::min(N, (r + 1) * gemm::kRowsOfPartial); ++n)
          sum += d[n * C + c], magnitude += std::abs(d[n * C + c]);
        ASSERT_NEAR(sums[r * C + c], sum, 2 * tolerance::kRoundingBf16 * magnitude) << r << ", " << c;
      }
  }
}

// What ours does not serve is computed by cuBLASLt, or refused where it was asked for by name.
TEST_F(CudaOwnGemms, OthersAreLeftToCuBlasLt) {
  const Gemm gemm{.dtype = DType::kBF16,
                  .m = 256,
                  .n = 64,
                  .k = 64,
                  .a = {.ld = 64},
                  .b = {.ld = 64, .transposed = true},
                  .d = {.ld = 64}};
  const GemmAlgorithm own{.id = GemmAlgorithm::kOwn};
  EXPECT_TRUE(library().supports(key_of(gemm), own));
  const auto refuses = [&](const char* what, auto change) {
    Gemm other = gemm;
    change(other);
    EXPECT_FALSE(library().supports(key_of(other), own)) << what;
    EXPECT_FALSE(gemm::problem_of(other).has_value()) << what;
  };
  refuses("fp32", [](Gemm& g) { g.dtype = DType::kF32; });
  refuses("both transposed", [](Gemm& g) { g.a.transposed = true; });
  refuses("a transposed, with bias", [](Gemm& g) {
    g.a = {.ld = 256, .transposed = true}, g.b.transposed = false, g.epilogue = GemmEpilogue::kBias;
  });
  refuses("rows of odd bytes", [](Gemm& g) { g.a.ld = 68; });
  refuses("odd columns", [](Gemm& g) { g.n = 60; });
  refuses("a batch", [](Gemm& g) { g.batch = 2; });
  refuses("GELU of [k, n]", [](Gemm& g) { g.epilogue = GemmEpilogue::kActivate, g.b.transposed = false; });
  refuses("activation backward of [n, k]", [](Gemm& g) { g.epilogue = GemmEpilogue::kActivationBackward; });
  Gemm scaled = gemm;
  scaled.a = {.ld = 256, .transposed = true}, scaled.b.transposed = false;
  EXPECT_TRUE(gemm::problem_of(scaled).has_value());
  scaled.beta = 0.5f;
  EXPECT_FALSE(gemm::problem_of(scaled).has_value());
  library().take_from(GemmSource::kCublasLt);
  for (const GemmAlgorithm& algorithm : library().algorithms(key_of(gemm), 8))
    EXPECT_NE(algorithm.id, GemmAlgorithm::kOwn);
  library().take_from(GemmSource::kAuto);
  const std::vector<GemmAlgorithm> all = library().algorithms(key_of(gemm), 8);
  EXPECT_EQ(std::ranges::count(all, own), 1);
  EXPECT_LE(all.size(), 8u);
  EXPECT_NE(all.front(), own) << "too small for all multiprocessors";
}

// A spilled register costs more than any tuning gains, and without wgmma the tensor cores are not used.
TEST(OwnGemms, KernelsUseWgmmaAndNoLocalMemory) {
  if (!gemm::available()) GTEST_SKIP() << "no GPU of compute capability 9.0, or built without 90a";
  const std::string me = std::filesystem::read_symlink("/proc/self/exe");
  const auto dump = [&](const std::string& options) {
    return testing::run_shell("PATH=\"$PATH:$1\"; exec cuobjdump " + options + " \"$0\"",
                              {me, CUOBJDUMP_FOLDER}, {.folder = std::filesystem::temp_directory_path()});
  };
  const testing::ProcessResult usage = dump("--dump-resource-usage");
  if (usage.status != 0) GTEST_SKIP() << "no cuobjdump on the PATH; tools/install --tests fetches it";
  std::istringstream lines(usage.out);
  std::string line, function;
  int kernels = 0;
  while (std::getline(lines, line)) {
    if (line.find(" Function ") != std::string::npos) function = line;
    if (line.find("REG:") == std::string::npos ||
        (function.find("gemm_kernel") == std::string::npos &&
         function.find("weight_gradient_kernel") == std::string::npos))
      continue;
    ++kernels;
    // With FP8 values to write a few registers wait in memory, once a tile: not while it multiplies.
    const bool fp8 =
        function.find("OperandsE1") != std::string::npos || function.find("OperandsE2") != std::string::npos;
    const size_t stack = line.find(" STACK:");
    ASSERT_NE(stack, std::string::npos);
    EXPECT_LE(std::stoi(line.substr(stack + 7)), fp8 ? 16 : 0) << function << "\n" << line;
    EXPECT_NE(line.find(" LOCAL:0 "), std::string::npos) << function << "\n" << line;
  }
  EXPECT_EQ(kernels, 17);
}

}  // namespace
}  // namespace tessera
