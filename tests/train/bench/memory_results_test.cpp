// What ./bench memory tells of made-up figures, what it measures on the CPU, and how it refuses.
#include "train/bench/memory_results.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/arena.h"
#include "tests/data/support.h"
#include "tests/process.h"
#include "tests/tolerances.h"
#include "tests/train/plot/svg_support.h"
#include "train/plot/svg_axis.h"

namespace tessera::testing {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

MemoryRow row(AttentionKind kind, int64_t tokens, const StepMemory& planned) {
  return {.attention = kind,
          .tokens = tokens,
          .planned = planned,
          .available = 8 * kGiB,
          .measured = planned,
          .step_ms = 4};
}

MemoryRow stopped(AttentionKind kind, int64_t tokens, int64_t step, MemoryRow::Outcome outcome) {
  return {.attention = kind,
          .tokens = tokens,
          .planned = {.step = step, .attention = step, .saved = step / 2},
          .available = 8 * kGiB,
          .outcome = outcome};
}

MemoryResults made_up_memory() {
  MemoryResults results{
      .device = "a <made-up> GPU", .precision = "bf16", .recompute = "none", .layers = 2, .steps = 3};
  for (const int64_t n : {1024, 2048, 4096}) {
    results.rows.push_back(
        row(AttentionKind::kNaive, n, {.step = kGiB, .attention = 40 * n * n, .saved = 32 * n * n}));
    results.rows.push_back(
        row(AttentionKind::kFlash, n, {.step = 1 << 20, .attention = 48 * n, .saved = 32 * n}));
  }
  results.rows.push_back(stopped(AttentionKind::kNaive, 8192, 9 * kGiB, MemoryRow::Outcome::kDoesNotFit));
  results.rows.push_back(stopped(AttentionKind::kFlash, 8192, 7 * kGiB, MemoryRow::Outcome::kRanOut));
  results.largest = {{.attention = AttentionKind::kNaive, .tokens = 6400, .available = 8 * kGiB}};
  return results;
}

void expect_parts(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST(MemoryResults, WhatIsSavedIsThePeakOfThatName) {
  Arena arena = Arena::plan(Device::kCpu);
  arena.record();
  const auto take = [&](MemoryTag tag, const char* name, int64_t bytes) {
    arena.alloc(tag, name, DType::kF32, {bytes / 4});
  };
  for (int step = 0; step < 2; ++step) {
    Arena::Scope scope(arena);
    take(MemoryTag::kAttention, "kept", 1024);
    take(MemoryTag::kActivations, "kept", 2048);  // of another tag
    {
      Arena::Scope block(arena);
      take(MemoryTag::kAttention, "scratch", 4096);
    }
    take(MemoryTag::kAttention, "kept", 512);
  }
  EXPECT_EQ(step_memory(arena.ledger(), "kept"),
            (StepMemory{.step = 1024 + 2048 + 4096, .attention = 1024 + 4096, .saved = 1024 + 512}));
  EXPECT_THROW(step_memory(Arena::plan(Device::kCpu).ledger(), "kept"), Error) << "it did not record";
}

TEST(MemoryResults, AnythingButThePlannedMemoryIsAnError) {
  MemoryRow good = row(AttentionKind::kFlash, 1024, {.step = 4096, .attention = 512, .saved = 256});
  EXPECT_NO_THROW(check_as_planned(good));
  for (int64_t StepMemory::*wrong : {&StepMemory::step, &StepMemory::attention, &StepMemory::saved}) {
    MemoryRow bad = good;
    bad.measured.*wrong += 256;
    try {
      check_as_planned(bad);
      ADD_FAILURE() << "a wrong plan was taken for right";
    } catch (const Error& error) {
      expect_parts(error.what(), {"1024 tokens", "flash", "planned 4096 bytes", "measured"});
    }
  }
}

TEST(MemoryResults, FitsAreThoseOfTheRowsThatRan) {
  const MemoryResults results = made_up_memory();
  const auto naive = fit_memory(results, AttentionKind::kNaive, &StepMemory::saved),
             flash = fit_memory(results, AttentionKind::kFlash, &StepMemory::saved);
  ASSERT_TRUE(naive && flash);
  EXPECT_NEAR(naive->exponent, 2, tolerance::kExactPower);
  EXPECT_NEAR(flash->exponent, 1, tolerance::kExactPower);
  EXPECT_EQ(naive->points, 3);
  EXPECT_EQ(naive->doublings, 2);
  EXPECT_EQ(fit_memory(results, AttentionKind::kNaive, &StepMemory::step)->exponent, 0);
  EXPECT_FALSE(fit_memory(results, AttentionKind::kCudnn, &StepMemory::saved));
}

TEST(MemoryResults, TableTellsFiguresAndWhyThereAreNone) {
  const MemoryResults results = made_up_memory();
  expect_parts(memory_table_head(results),
               {"2 layers", "bf16", "median of 3 steps", "saved/token", "step ms", "tokens/s", "<made-up>"});
  expect_parts(memory_table_line(results.rows[0]),
               {"1024", "naive", "32.0 MiB", "32.0 KiB", "40.0 MiB", "1.0 GiB", "1.0 MiB", "4.00", "256000"});
  expect_parts(memory_table_line(results.rows[6]), {"8192", "naive", "does not fit", "9.0 GiB", "8.0 GiB"});
  expect_parts(memory_table_line(results.rows[7]), {"flash", "ran out of memory", "7.0 GiB", "8.0 GiB"});
  expect_parts(memory_summary(results), {"N^2.000", "N^1.000", "R^2 1.00000", "3 lengths over 2 doublings",
                                         "naive attention: 6400 tokens", "in steps of 128"});
}

TEST(MemoryResults, JsonHoldsEveryRowAndFit) {
  const auto json = nlohmann::json::parse(to_json(made_up_memory()).dump());
  ASSERT_EQ(json["rows"].size(), 8u);
  const auto& first = json["rows"][0];
  EXPECT_EQ(first["outcome"], "ran");
  EXPECT_EQ(first["measured"]["attention_saved_bytes"], 32 << 20);
  EXPECT_EQ(first["measured"], first["planned"]);
  EXPECT_EQ(first["attention_saved_bytes_per_token"], 32 << 10);
  EXPECT_EQ(first["tokens_per_second"], 256000);
  EXPECT_EQ(json["rows"][6]["outcome"], "does_not_fit");
  EXPECT_EQ(json["rows"][6]["available_bytes"], 8 * kGiB);
  EXPECT_FALSE(json["rows"][6].contains("measured"));
  EXPECT_EQ(json["rows"][7]["outcome"], "ran_out_of_memory");
  const auto& fit = json["bytes_as_power_of_tokens"]["naive"]["attention_saved_bytes"];
  EXPECT_NEAR(fit["exponent"], 2, tolerance::kExactPower);
  EXPECT_EQ(fit["doublings"], 2);
  EXPECT_EQ(json["largest_that_fits_by_plan"]["naive"]["tokens"], 6400);
}

TEST(MemoryResults, SvgShowsSlopesAndEnds) {
  const std::string svg = to_svg(made_up_memory());
  expect_sound_svg(svg);
  expect_parts(svg, {"&lt;made-up&gt;", ">naive: slope 2.00<", ">flash: slope 1.00<", ">naive<",
                     ">out of memory<", ">at N = 8192<", ">available: 8.0 GiB<", "Peak of the whole step",
                     ">8K<", "prefers-color-scheme:dark"});
  EXPECT_EQ(svg.find("slope 0.00"), std::string::npos)
      << "a peak is a constant and a power of N, which has no slope";
}

TEST(MemoryResults, SvgOfKindsThatNeverRanIsStillAFile) {
  MemoryResults results = made_up_memory();
  results.rows.erase(results.rows.begin(), results.rows.end() - 2);
  expect_sound_svg(to_svg(results));
  expect_parts(to_svg(results), {">out of memory<", ">naive<"});
}

TEST(SvgAxis, OfBytesHasFewTicksAtPowersOfTwoAroundTheValues) {
  for (const auto& [smallest, largest] :
       {std::pair(1.0, 1.0), {1000.0, 1000.0}, {1024.0, 1025.0}, {300.0, 1e6}, {512.0, 1e12}, {1.0, 1e18}}) {
    const PlotAxis axis = axis_of_bytes(smallest, largest);
    EXPECT_LE(axis.from, smallest);
    EXPECT_GE(axis.to, largest);
    EXPECT_GE(axis.ticks.size(), 2u);
    EXPECT_LE(axis.ticks.size(), 9u);
    EXPECT_EQ(axis.ticks.front().value, axis.from);
    EXPECT_EQ(axis.ticks.back().value, axis.to);
    EXPECT_NEAR(axis.share(axis.from), 0, tolerance::kExactPower);
    EXPECT_NEAR(axis.share(axis.to), 1, tolerance::kExactPower);
  }
  const PlotAxis axis = axis_of_bytes(1 << 20, 1 << 30);
  EXPECT_EQ(axis.ticks.front().text, "1 MiB");
  EXPECT_EQ(axis.ticks[1].text, "4 MiB");
  EXPECT_EQ(axis.ticks.back().text, "1 GiB");
}

struct BenchMemory : InTempFolder {
  BenchMemory() {
    write("small.yaml",
          "device: cpu\nmodel:\n  vocab_size: 257\n  context: 64\n  layers: 3\n  heads: 2\n  channels: 16\n");
  }
  ProcessResult bench(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"memory", "--config", "small.yaml", "--steps", "1"});
    return run_process(BENCH_BINARY, arguments, {.folder = folder_});
  }
  nlohmann::json figures(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--json", "m.json"});
    const ProcessResult result = bench(arguments);
    EXPECT_EQ(result.status, 0) << result.out << result.error;
    std::ifstream file(folder_ / "m.json");
    return nlohmann::json::parse(file);
  }
  void refused(const std::vector<std::string>& arguments, std::initializer_list<const char*> parts) const {
    const ProcessResult result = bench(arguments);
    EXPECT_EQ(result.status, 1) << result.out;
    expect_parts(result.error, parts);
  }
};

TEST_F(BenchMemory, NaiveSavesNSquaredAndFlashNAsPlanned) {
  const ProcessResult result = bench({"--seq-lens", "64..2048", "--json", "m.json", "--svg", "m.svg"});
  ASSERT_EQ(result.status, 0) << result.error;
  expect_parts(result.out,
               {"skipped: cudnn", "N^2.000", "N^1.000", "6 lengths over 5 doublings", "most that fit"});
  std::ifstream file(folder_ / "m.json");
  const auto json = nlohmann::json::parse(file);
  ASSERT_EQ(json["rows"].size(), 12u);
  for (const auto& made : json["rows"]) {
    const int64_t n = made["tokens"], saved = 3 * 2 * n * 4 * (made["attention"] == "naive" ? n : 1);
    EXPECT_EQ(made["measured"], made["planned"]) << made;
    EXPECT_EQ(made["measured"]["attention_saved_bytes"], saved) << made;
    EXPECT_GE(made["measured"]["attention_peak_bytes"], saved);
    EXPECT_GT(made["measured"]["step_peak_bytes"], made["measured"]["attention_peak_bytes"]);
    EXPECT_GT(made["step_ms"], 0);
  }
  for (const auto& [kind, power] : {std::pair("naive", 2.0), {"flash", 1.0}}) {
    const auto& fit = json["bytes_as_power_of_tokens"][kind]["attention_saved_bytes"];
    EXPECT_NEAR(fit["exponent"], power, tolerance::kExactPower);
    EXPECT_NEAR(fit["r_squared"], 1, tolerance::kExactPower);
    EXPECT_EQ(fit["doublings"], 5);
  }
  std::ifstream plot(folder_ / "m.svg");
  std::stringstream svg;
  svg << plot.rdbuf();
  expect_sound_svg(svg.str());
  expect_parts(svg.str(), {">naive: slope 2.00<", ">flash: slope 1.00<"});
}

TEST_F(BenchMemory, RecomputedBlocksShareWhatAttentionSaves) {
  const auto json = figures({"--seq-lens", "64", "--attention", "naive", "--set", "train.recompute=block",
                             "--set", "train.classifier_chunk=16"});
  EXPECT_EQ(json["recompute"], "block");
  EXPECT_EQ(json["classifier_chunk_tokens"], 16);
  EXPECT_EQ(json["rows"][0]["measured"]["attention_saved_bytes"], 2 * 64 * 64 * 4);
}

TEST_F(BenchMemory, WhatDoesNotFitByPlanIsSaidAndNotTried) {
  const std::vector<std::string> limited{"--device-memory", "8MiB", "--attention", "naive,flash",
                                         "--seq-lens"};
  const auto with = [&](const std::string& lengths) {
    std::vector<std::string> arguments = limited;
    arguments.push_back(lengths);
    return arguments;
  };
  const auto json = figures(with("64..1024"));
  const auto& last = json["rows"][8];
  EXPECT_EQ(last["attention"], "naive");
  EXPECT_EQ(last["outcome"], "does_not_fit");
  EXPECT_GT(last["planned"]["step_peak_bytes"], 8 << 20);
  EXPECT_FALSE(last.contains("measured"));
  EXPECT_EQ(json["rows"][9]["outcome"], "ran") << "flash goes on";

  const int64_t largest = json["largest_that_fits_by_plan"]["naive"]["tokens"];
  ASSERT_GT(largest, 0);
  const auto around = figures(with(std::to_string(largest) + "," + std::to_string(largest + 128)))["rows"];
  EXPECT_EQ(around[0]["outcome"], "ran");
  EXPECT_EQ(around[2]["outcome"], "does_not_fit");
}

TEST_F(BenchMemory, RunningOutAgainstThePlanIsARowToo) {
  if (!kAddressesCanBeLimited) GTEST_SKIP() << "built with the address sanitizer: no limit on memory";
  // The system grants less than it has: 1.9 GiB of addresses, where naive plans 2.2.
  const std::string command = R"(ulimit -v 2000000; OMP_NUM_THREADS=1 exec "$0" "$@")";
  const ProcessResult result =
      run_shell(command,
                {BENCH_BINARY, "memory", "--config", "small.yaml", "--steps", "1", "--attention", "naive",
                 "--seq-lens", "64,8192", "--json", "m.json"},
                {.folder = folder_});
  ASSERT_EQ(result.status, 0) << result.out << result.error;
  if (result.out.find("does not fit") != std::string::npos)
    GTEST_SKIP() << "this machine has too little memory";
  expect_parts(result.out, {"ran out of memory", "needs 2."});
}

TEST_F(BenchMemory, RefusesLoudly) {
  refused({"--attention", "cudnn"}, {"cudnn attention needs a GPU"});
  refused({"--attention", "naive,linear"}, {"unknown attention \"linear\"", "naive, flash, cudnn"});
  refused({"--seq-lens", "512..64"}, {"--seq-lens", "up", "512..64"});
  refused({"--seq-lens", "0"}, {"--seq-lens", "10000000"});
  refused({"--device-memory", "much"}, {"\"much\"", "80GiB"});
  refused({"--svg", "no/such/folder/m.svg"}, {"cannot write"});
  EXPECT_NE(bench({"--steps", "0"}).status, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "m.json"));
}

TEST_F(BenchMemory, HelpNamesEveryOption) {
  const ProcessResult help = bench({"--help"});
  EXPECT_EQ(help.status, 0);
  expect_parts(help.out, {"--config", "--set", "--seq-lens", "--attention", "--steps", "--device-memory",
                          "--json", "--svg", "512..65536"});
}

}  // namespace
}  // namespace tessera::testing
