// Algorithms of matrix products: all that are offered are right, repeat their bits and survive a table; a run
// keeps those that were chosen.
#include "kernels/gemm/linear_gemms.h"
#include "kernels/gemm/timing.h"
#include "tests/cuda/train_on_gpu.h"
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

constexpr int kMost = 24;

struct CudaGemms : CudaTest {
  GemmLibrary& library() { return *cuda().backend().gemms(); }

  // Runs `run` with each algorithm of `gemm` in turn, chosen by a table that was written and read.
  void with_each(const Gemm& gemm, const std::function<void()>& run) {
    const GemmKey key = key_of(gemm);
    const std::vector<GemmAlgorithm> algorithms = library().algorithms(key, kMost);
    for (const GemmAlgorithm& algorithm : algorithms) {
      SCOPED_TRACE(fmt::format("{}, algorithm {} tile {} stages {} split k {}", describe(key), algorithm.id,
                               algorithm.tile, algorithm.stages, algorithm.split_k));
      const GemmTable table{.platform = library().platform(), .choices = {{key, {.algorithm = algorithm}}}};
      library().use(parse_gemm_table(text_of(table), "a table"));
      run();
      tried_ += 1, split_ += algorithm.split_k > 1;
    }
    library().use({});
  }

  int tried_ = 0, split_ = 0;
};

TEST_F(CudaGemms, EveryAlgorithmOfAForwardIsRight) {
  for (const DType dtype : kReal)
    for (const auto& [N, C, O] : {std::array<int64_t, 3>{130, 768, 2304}, {1000, 520, 136}, {63, 50, 33}})
      for (const bool gelu : {false, true}) {
        const Twin x = input(dtype, {N, C}), bias = input(dtype, {O}),
                   weight = input(dtype, {O, C}, 1 / std::sqrt(static_cast<float>(C)));
        const Twin y = output(dtype, {N, O}), pre_activation = gelu ? output(dtype, {N, O}) : Twin{};
        const auto make = [&](auto on) {
          return LinearForward{.x = on(x),
                               .weight = on(weight),
                               .y = on(y),
                               .bias = on(bias),
                               .pre_activation = on(pre_activation)};
        };
        with_each(gemms_of(make(OnCuda{})).fused, [&] {
          run_on_both({y}, make);
          expect_same(y, "y");
          if (gelu) expect_same(pre_activation, "pre_activation");
        });
      }
  EXPECT_GT(tried_, 12);
}

TEST_F(CudaGemms, EveryAlgorithmOfABackwardIsRight) {
  for (const DType dtype : kReal)
    for (const auto& [N, C, O] : {std::array<int64_t, 3>{1000, 72, 136}, {1024, 768, 768}, {130, 50, 33}}) {
      const Twin x = input(dtype, {N, C}), weight = input(dtype, {O, C}), dy = input(dtype, {N, O}),
                 pre_activation = input(dtype, {N, C}, 2), dx = output(dtype, {N, C}),
                 before = input(dtype, {O, C});
      Twin dweight;
      const auto make = [&](auto on) {
        return LinearBackward{.dy = on(dy),
                              .x = on(x),
                              .weight = on(weight),
                              .dx = on(dx),
                              .dweight = on(dweight),
                              .pre_activation = on(pre_activation)};
      };
      const auto run = [&] {
        std::memcpy(dweight.cpu.data, before.cpu.data, before.cpu.bytes());
        cuda().run(Copy{before.cuda, dweight.cuda});
        run_on_both({dx, dweight}, make);
        expect_same(dx, "dx");
        expect_same(dweight, "dweight");
      };
      dweight = output(dtype, {O, C});
      const LinearBackwardGemms gemms = gemms_of(make(OnCuda{}));
      with_each(*gemms.dweight, run);
      with_each(gemms.fused_dx.value_or(gemms.dx), run);
    }
  EXPECT_GT(tried_, 12);
  EXPECT_GT(split_, 0) << "no algorithm splits k: the test does not reach them";
}

TEST_F(CudaGemms, TheFirstIsWhatTheLibraryTakesByItself) {
  const int64_t N = 1000, C = 768, O = 776;
  const Twin x = input(DType::kBF16, {N, C}), weight = input(DType::kBF16, {O, C}),
             y = output(DType::kBF16, {N, O});
  const LinearForward op{.x = x.cuda, .weight = weight.cuda, .y = y.cuda};
  cuda().run(op);
  const std::vector<char> by_itself = bytes_of(y.cuda);
  const Gemm gemm = gemms_of(op).fused;
  const std::vector<GemmAlgorithm> algorithms = library().algorithms(key_of(gemm), kMost);
  ASSERT_FALSE(algorithms.empty());
  EXPECT_EQ(algorithms.front(), library().algorithms(key_of(gemm), 1).front());
  library().prepare(gemm, algorithms.front(), cuda().launch())();
  EXPECT_EQ(bytes_of(y.cuda), by_itself);
}

TEST_F(CudaGemms, WhatTheLibraryDoesNotSupportIsRefused) {
  const GemmKey key = key_of(gemms_of(LinearForward{.x = input(DType::kBF16, {64, 64}).cuda,
                                                    .weight = input(DType::kBF16, {64, 64}).cuda,
                                                    .y = output(DType::kBF16, {64, 64}).cuda})
                                 .fused);
  const GemmAlgorithm unknown{.id = 99999};
  EXPECT_FALSE(library().supports(key, unknown));
  const GemmTable table{.platform = library().platform(), .choices = {{key, {.algorithm = unknown}}}};
  EXPECT_NE(message_of([&] { library().use(table); }).find("chosen for [64, 64]"), std::string::npos);
  GemmAlgorithm split = library().algorithms(key, 1).front();
  split.split_k = 1 << 20;  // more workspace than there is
  split.reduction = 2;
  EXPECT_FALSE(library().supports(key, split));
}

TEST_F(CudaGemms, TimesAreThoseOfTheDevice) {
  Arena arena = Arena::cuda();
  const GemmKey key = key_of({.dtype = DType::kBF16,
                              .m = 4096,
                              .n = 1536,
                              .k = 1024,
                              .a = {.ld = 1024},
                              .b = {.ld = 1024, .transposed = true},
                              .d = {.ld = 1536},
                              .epilogue = GemmEpilogue::kBias});
  const std::vector<GemmTime> times = time_algorithms(library(), cuda(), arena, key);
  ASSERT_GT(times.size(), 1u);
  for (const GemmTime& time : times) {
    EXPECT_GT(gemm_of(key).flops() / time.ms * 1e3, 1e12);
    EXPECT_LT(gemm_of(key).flops() / time.ms * 1e3, 2e15);
  }
  EXPECT_EQ(arena.ledger().current_bytes(), 0);
}

}  // namespace

namespace testing {
namespace {

namespace fs = std::filesystem;

struct CudaGemmRun : TrainOnGpu {
  CudaGemmRun()
      : TrainOnGpu(
            "device: cuda\n"
            "model:\n  vocab_size: 257\n  context: 256\n  layers: 2\n  heads: 2\n  channels: 128\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 12\n  tokens_per_step: 4096\n"
            "optimizer:\n  learning_rate: 3e-3\n  warmup_steps: 2\n"
            "evaluation:\n  every: 6\n"
            "sampling:\n  every: 0\n"
            "checkpoint:\n  every: 6\n  keep: 0\n") {}

  // As a run that was stopped after its sixth step
  void cut() const {
    fs::remove_all(folder / "cut");
    fs::copy(folder / "out", folder / "cut", fs::copy_options::recursive);
    fs::remove_all(folder / "cut/checkpoints/step_00000012");
  }
};

TEST_F(CudaGemmRun, ARunKeepsItsAlgorithms) {
  ASSERT_EQ(train({}).status, 0);
  const GemmTable kept = read_gemm_table(folder / "out/gemms.jsonl");
  EXPECT_GE(kept.choices.size(), 12u);
  const std::string first = read_file(folder / "out/metrics.jsonl");
  EXPECT_NE(first.find("timed in"), std::string::npos);

  // The cache makes another run the same.
  ASSERT_EQ(train({"--set", "train.folder=again"}).status, 0);
  EXPECT_EQ(losses("again"), losses("out"));
  EXPECT_EQ(read_file(folder / "again/metrics.jsonl").find("timed in"), std::string::npos);

  // A resumed run needs no cache.
  fs::remove_all(folder / "cache");
  cut();
  const ProcessResult resumed = train({"--resume", "--set", "train.folder=cut"});
  ASSERT_EQ(resumed.status, 0) << resumed.error;
  EXPECT_EQ(losses("cut"), losses("out"));
  EXPECT_NE(resumed.out.find("cut/gemms.jsonl"), std::string::npos) << resumed.out;
  EXPECT_EQ(read_file(folder / "cut/gemms.jsonl"), read_file(folder / "out/gemms.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "cache"));

  // The choices of another device are not used.
  cut();
  GemmTable other = kept;
  other.platform.device = "Other GPU";
  write("cut/gemms.jsonl", text_of(other));
  const ProcessResult elsewhere = train({"--resume", "--set", "train.folder=cut"});
  ASSERT_EQ(elsewhere.status, 0) << elsewhere.error;
  EXPECT_NE(elsewhere.out.find("has algorithms for Other GPU"), std::string::npos) << elsewhere.out;
  EXPECT_EQ(read_gemm_table(folder / "cut/gemms.jsonl").platform, kept.platform);
}

TEST_F(CudaGemmRun, OffIsTheLibrarysOwnChoice) {
  ASSERT_EQ(train({"--set", "train.tune=off"}).status, 0);
  EXPECT_FALSE(fs::exists(folder / "out/gemms.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "cache"));
  ASSERT_EQ(train({"--set", "train.tune=off", "--set", "train.folder=again"}).status, 0);
  EXPECT_EQ(losses("again"), losses("out"));
}

// On a GPU with products of our own
TEST_F(CudaGemmRun, BenchTimesTheProductsOfTheKey) {
  for (const std::string source : {"tessera", "cublaslt"}) {
    const ProcessResult bench = run_process(
        BENCH_BINARY, {"gemm", "small.yaml", "--set", "train.gemm_backend=" + source}, {.folder = folder});
    if (bench.error.find("compute capability 9.0") != std::string::npos)
      GTEST_SKIP() << "no products of our own";
    ASSERT_EQ(bench.status, 0) << bench.error;
    EXPECT_EQ(bench.out.find(" ours\n") != std::string::npos, source == "tessera") << bench.out;
  }
}

TEST_F(CudaGemmRun, ADamagedTableIsRefused) {
  ASSERT_EQ(train({}).status, 0);
  cut();
  write("cut/gemms.jsonl", read_file(folder / "out/gemms.jsonl") + "{}\n");
  refused({"--resume", "--set", "train.folder=cut"}, {"cut/gemms.jsonl:", "has no \"m\""});
}

}  // namespace
}  // namespace testing
}  // namespace tessera
