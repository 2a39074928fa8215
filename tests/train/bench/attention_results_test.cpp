// What ./bench attention tells of made-up figures, and how it refuses.
#include "train/bench/attention_results.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "tests/attn_mask.h"
#include "tests/data/support.h"
#include "tests/process.h"
#include "tests/train/plot/svg_support.h"
#include "train/bench/attention_sweep.h"
#include "train/plot/svg_plot.h"

namespace tessera::testing {
namespace {

AttentionCell cell(const char* rung, int64_t tokens, double forward_ms, double backward_ms) {
  AttentionCell made;
  made.rung = rung;
  made.mask = {.name = "causal"};
  made.problem = {.struct_size = sizeof(AttnProblem),
                  .dtype = ATTN_BF16,
                  .batch = 2,
                  .tokens = tokens,
                  .kv_tokens = tokens,
                  .heads = 8,
                  .kv_heads = 8,
                  .head_dim = 64,
                  .mask = test::attn_mask(1),
                  .scale = 0.125f,
                  .dropout = {}};
  made.forward_ms = forward_ms;
  made.backward_ms = backward_ms;
  made.saved_bytes = 1 << 20;
  made.workspace_bytes = 3 << 20;
  return made;
}

AttentionResults made_up_attention() {
  AttentionResults results{
      .device = "a <made-up> GPU", .cudnn = "9.9.9", .gemm_peak = 1e12, .repeats = 3, .cells = {}};
  results.cells = {cell("hopper", 1024, 1, 4), cell("cudnn", 1024, 2, 2), cell("hopper", 2048, 2, 4),
                   cell("cudnn", 2048, 1, 8), cell("row", 4096, 0, 0)};
  results.cells.back().why_not = "too long";
  results.cells[0].forward = {.read = 3e9, .written = 1e9, .loaded = 8e9, .stored = 1e9};
  return results;
}

TEST(AttentionResults, FlopsAreFourTimesBHNND) {
  AttnProblem p = cell("hopper", 1024, 1, 1).problem;
  EXPECT_DOUBLE_EQ(attention_flops(p, false), 0.5 * 4 * 2 * 8 * 1024.0 * 1024.0 * 64);
  p.mask.causal = 0;
  EXPECT_DOUBLE_EQ(attention_flops(p, true), 2.5 * 4 * 2 * 8 * 1024.0 * 1024.0 * 64);
}

AttnProblem masked(const BenchMask& mask, int64_t batch, int64_t tokens) {
  AttnProblem p = cell("hopper", tokens, 1, 1).problem;
  p.batch = batch;
  p.mask = mask.mask;
  return p;
}

TEST(AttentionResults, FlopsAndTrafficCountVisiblePairs) {
  const BenchMask window = parse_mask("window:100", 2, 1024),
                  documents = parse_mask("documents:256", 1, 2048);
  const AttnProblem of_window = masked(window, 2, 1024), of_documents = masked(documents, 1, 2048);
  EXPECT_DOUBLE_EQ(attention::visible_pairs(of_window), 2 * (100 * 1024 - 99 * 100 / 2.0));
  EXPECT_DOUBLE_EQ(attention::visible_pairs(of_documents), 8 * 256 * 257 / 2.0);
  // Beside their own, blocks 1 to 3 see block 0, blocks 0 and 1, and blocks 0 and 2.
  const BenchMask blocks = parse_mask("blocks:2+1", 1, 512);
  EXPECT_DOUBLE_EQ(attention::visible_pairs(masked(blocks, 1, 512)), 4 * 128 * 129 / 2.0 + 5 * 128 * 128);
  // As much arithmetic as the documents on their own
  AttnProblem own = masked(parse_mask("causal", 8, 256), 8, 256);
  for (const bool backward : {false, true})
    EXPECT_DOUBLE_EQ(attention_flops(of_documents, backward), attention_flops(own, backward));
  EXPECT_DOUBLE_EQ(attention::fused_forward_traffic(of_documents, 128).loaded,
                   attention::fused_forward_traffic(own, 128).loaded);
  EXPECT_DOUBLE_EQ(attention::tensor_core_backward_traffic(of_documents, 128, 1).loaded,
                   attention::tensor_core_backward_traffic(own, 128, 1).loaded);
  EXPECT_FALSE(same_problem(of_documents, masked(parse_mask("causal", 1, 2048), 1, 2048)));
}

TEST(BenchMasks, CutSequencesIntoDocuments) {
  const BenchMask mask = parse_mask("documents:3", 2, 5);
  EXPECT_EQ(*mask.documents,
            (std::vector<int32_t>{0, 3, 0, 3, 0, 3, 3, 5, 3, 5, 0, 3, 0, 3, 0, 3, 3, 5, 3, 5}));
  EXPECT_EQ(mask.mask.documents, mask.documents->data());
  EXPECT_EQ(mask.mask.causal, 1);
}

TEST(BenchMasks, MixedDocumentsHaveTheirMeanLengthAndAreTheSameEveryTime) {
  constexpr int64_t kTokens = 4 << 20;
  const BenchMask mask = parse_mask("documents:mixed", 1, kTokens);
  const std::vector<int32_t>& table = *mask.documents;
  ASSERT_EQ(table.size(), 2u * kTokens);
  int64_t count = 0, shortest = kTokens, longest = 0;
  for (int64_t token = 0; token < kTokens; token = table[2 * token + 1], ++count) {
    ASSERT_EQ(table[2 * token], token) << "documents follow one another";
    const int64_t length = table[2 * token + 1] - token;
    shortest = std::min(shortest, length), longest = std::max(longest, length);
  }
  EXPECT_NEAR(kTokens / static_cast<double>(count), kMeanLength, 50);
  EXPECT_LT(shortest, 60);
  EXPECT_GT(longest, 5000);
  EXPECT_EQ(table, *parse_mask("documents:mixed", 1, kTokens).documents);
}

TEST(BenchMasks, OthersAreRefused) {
  for (const char* wrong :
       {"", "windows", "window", "window:", "window:0", "window:-1", "window:1x", "window:mixed", "documents",
        "documents:0", "documents:Mixed", "causal:1", "full:1"})
    EXPECT_THROW(parse_mask(wrong, 1, 8), Error) << wrong;
}

TEST(AttentionResults, MeanRatiosAreGeometricOverProblemsOfBoth) {
  const auto means = mean_ratios(made_up_attention());
  ASSERT_EQ(means.size(), 1u) << "neither the yardstick nor what was not measured has one";
  EXPECT_DOUBLE_EQ(means.at("hopper").forward, 1.0);   // 2 and 1/2
  EXPECT_DOUBLE_EQ(means.at("hopper").backward, 1.0);  // 1/2 and 2
  EXPECT_EQ(means.at("hopper").problems, 2);
}

TEST(AttentionResults, TableTellsFiguresAndWhyThereAreNone) {
  const AttentionResults results = made_up_attention();
  const std::string table =
      problem_table(std::span(results.cells).first(2), results.gemm_peak, results.cudnn);
  for (const char* part :
       {"2 x 1024 tokens, 8 heads of 64, causal, 1049600 visible pairs, beside cuDNN 9.9.9\n", "x cudnn",
        "2.00", "0.50", "1.0 MiB", "3.0 MiB", "4 GB", "moves fwd"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  const std::string missing =
      problem_table(std::span(results.cells).last(1), results.gemm_peak, results.cudnn);
  EXPECT_NE(missing.find("too long"), std::string::npos) << missing;
  EXPECT_EQ(missing.find("x cudnn"), std::string::npos) << missing;
}

TEST(AttentionResults, WarnsOfAnOldYardstick) {
  for (const int version : {0, 91900, 92801}) EXPECT_EQ(old_cudnn_warning(version), "");
  const std::string warning = old_cudnn_warning(91400);
  for (const char* part : {"cuDNN 9.14.0", "9.19.0 or later", "pip install", "LD_LIBRARY_PATH"})
    EXPECT_NE(warning.find(part), std::string::npos) << warning;
}

TEST(AttentionResults, JsonHoldsEveryCell) {
  const auto json = nlohmann::json::parse(to_json(made_up_attention()).dump());
  ASSERT_EQ(json["cells"].size(), 5u);
  const auto& first = json["cells"][0];
  EXPECT_EQ(first["rung"], "hopper");
  EXPECT_EQ(first["mask"], "causal");
  EXPECT_DOUBLE_EQ(first["visible_pairs"], 2 * 1024 * 1025 / 2);
  EXPECT_DOUBLE_EQ(first["forward"]["ms"], 1);
  EXPECT_DOUBLE_EQ(first["forward"]["ratio_to_cudnn"], 2);
  EXPECT_DOUBLE_EQ(first["forward"]["tflops"], 0.5 * 4 * 2 * 8 * 1024.0 * 1024.0 * 64 / 1e9);
  EXPECT_DOUBLE_EQ(first["forward"]["device_bytes_read"], 3e9);
  EXPECT_FALSE(first["backward"].contains("device_bytes_read"));
  EXPECT_EQ(json["cells"][4]["not_measured"], "too long");
  EXPECT_FALSE(json["cells"][4].contains("forward"));
  EXPECT_EQ(json["geometric_mean_of_ratios_to_cudnn"]["hopper"]["problems"], 2);
}

TEST(AttentionResults, PricesOfExtrasCompareWithTheSameWithout) {
  AttentionResults results = made_up_attention();
  results.cells.push_back(cell("hopper", 1024, 1.1, 4.4));
  results.cells.push_back(cell("hopper", 2048, 2.2, 5.6));
  results.cells.push_back(cell("row", 4096, 3, 3));  // which was not measured without
  for (AttentionCell& with : std::span(results.cells).last(3)) with.extra = "dropout:0.25";
  const auto prices = extra_prices(results);
  const std::pair<std::string, std::string> which{"hopper", "dropout:0.25"};
  ASSERT_EQ(prices.size(), 1u);
  EXPECT_NEAR(prices.at(which).forward, 0.1, 1e-12);
  EXPECT_NEAR(prices.at(which).backward, std::sqrt(1.1 * 1.4) - 1, 1e-12);
  EXPECT_NEAR(prices.at(which).both, std::sqrt(1.1 * 1.3) - 1, 1e-12);
  EXPECT_EQ(prices.at(which).problems, 2);
  EXPECT_EQ(mean_ratios(results).at("hopper").problems, 2) << "the yardstick has no extra";

  const std::vector<AttentionCell> cells{results.cells[0], results.cells[1], results.cells[5]};
  const std::string table = problem_table(cells, results.gemm_peak, results.cudnn);
  EXPECT_NE(table.find("    dropout:0.25"), std::string::npos) << table;
  EXPECT_NE(table.find("adds +10.0% +10.0%\n"), std::string::npos) << table;
  const auto json = nlohmann::json::parse(to_json(results).dump());
  EXPECT_EQ(json["cells"][5]["with"], "dropout:0.25");
  EXPECT_NEAR(json["cells"][5]["adds"]["forward"], 0.1, 1e-12);
  EXPECT_FALSE(json["cells"][5]["forward"].contains("ratio_to_cudnn"));
  EXPECT_FALSE(json["cells"][0].contains("with"));
}

TEST(AttentionResults, SvgHasAPanelForEachDirectionAndEscapes) {
  const std::string svg = to_svg(made_up_attention());
  expect_sound_svg(svg);
  for (const char* part : {"head dim 64, causal, forward", "head dim 64, causal, backward", "&lt;made-up&gt;",
                           "prefers-color-scheme:dark", ">hopper<", ">cudnn<", ">2K<"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  EXPECT_EQ(svg.find(">row<"), std::string::npos) << "not measured";
}

// The heights of the horizontal lines of a kind: "g" of ticks, "v" of levels.
std::vector<std::string> heights(const std::string& svg, const std::string& kind) {
  std::vector<std::string> found;
  const std::string begin = "<path class=\"" + kind + "\" d=\"M";
  for (size_t at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at + 1)) {
    const size_t y = svg.find(' ', at + begin.size()) + 1;
    found.push_back(svg.substr(y, svg.find('H', y) - y));
  }
  return found;
}

TEST(AttentionResults, SvgHasTheGemmPeakAndOneScaleInAllPanels) {
  AttentionResults results = made_up_attention();
  results.gemm_peak = 804e12;
  const std::string svg = to_svg(results);
  expect_sound_svg(svg);
  const std::vector<std::string> levels = heights(svg, "v"), ticks = heights(svg, "g");
  ASSERT_EQ(levels.size(), 2u) << "one in each panel";
  EXPECT_EQ(levels[0], levels[1]);
  ASSERT_EQ(ticks.size() % 2, 0u);
  for (size_t i = 0; i < ticks.size() / 2; ++i) EXPECT_EQ(ticks[i], ticks[i + ticks.size() / 2]);
  EXPECT_NE(svg.find("GEMM peak: 804 TFLOP/s"), std::string::npos);
  EXPECT_NE(svg.find(">1000<"), std::string::npos) << "the scale reaches the peak";
  EXPECT_NE(svg.find(">0<"), std::string::npos) << "and begins at zero";
}

TEST(SvgPlot, ALevelAtTheTopHasItsTextBelowIt) {  // above it would cover the panel's title
  SvgPlot plot{.title = "t", .x_label = "x", .y_label = "y", .panels = {}};
  plot.line("panel", "line").points = {{1, 1}, {2, 1000}};
  const auto text_less_line = [&](double level) {
    plot.panels[0].levels = {{level, "peak"}};
    const std::string svg = plot.draw();
    const size_t end = svg.find("\" text-anchor=\"start\">peak");
    const size_t begin = svg.rfind("y=\"", end) + 3;
    return std::stod(svg.substr(begin, end - begin)) - std::stod(heights(svg, "v").at(0));
  };
  EXPECT_GT(text_less_line(1000), 10);
  EXPECT_LT(text_less_line(500), 0);
}

TEST(SvgPlot, OfNothingOrOnePointIsStillAFile) {
  expect_sound_svg(SvgPlot{}.draw());
  SvgPlot one{.title = "t", .x_label = "x", .y_label = "y", .panels = {}};
  one.line("panel", "line").points.push_back({1024, 3});
  const std::string svg = one.draw();
  expect_sound_svg(svg);
  EXPECT_NE(svg.find("<circle"), std::string::npos);
}

TEST(AttentionShapes, AreFourNumbers) {
  EXPECT_EQ(parse_attention_shape("64,1024,12,64"), (std::vector<int64_t>{64, 1024, 12, 64}));
  for (const char* wrong : {"", "1", "1,2,3", "1,2,3,4,5", "1,2,x,4", "1,2,-3,4", "1,2,0,4", "1,,3,4",
                            "1,2,3,4,", "1,2,3,99999999999"})
    EXPECT_THROW(parse_attention_shape(wrong), Error) << wrong;
}

struct BenchAttention : InTempFolder {
  ProcessResult bench(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "attention");
    return run_process(BENCH_BINARY, arguments, {.folder = folder_});
  }
};

TEST_F(BenchAttention, MeasuresBothKindsOnTheCpu) {
  const ProcessResult result =
      bench({"--device", "cpu", "--seq-lens", "16,64", "--head-dims", "16", "--channels", "32", "--tokens",
             "64", "--repeats", "1", "--shape", "1,24,2,8", "--json", "a.json", "--svg", "a.svg"});
  ASSERT_EQ(result.status, 0) << result.error;
  for (const char* part : {"4 x 16 tokens, 2 heads of 16, causal", "1 x 64 tokens, 2 heads of 16, full",
                           "1 x 24 tokens, 2 heads of 8", "naive", "flash"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  std::ifstream file(folder_ / "a.json");
  const auto json = nlohmann::json::parse(file);
  EXPECT_EQ(json["cells"].size(), 12u);
  for (const auto& made : json["cells"]) EXPECT_GT(made["backward"]["ms"], 0) << made;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "a.svg"));
}

TEST_F(BenchAttention, MeasuresWindowsAndDocuments) {
  const ProcessResult result = bench({"--device", "cpu", "--seq-lens", "64", "--head-dims", "16",
                                      "--channels", "32", "--tokens", "128", "--repeats", "1", "--json",
                                      "a.json", "--masks", "causal,window:8,documents:16,documents:mixed"});
  ASSERT_EQ(result.status, 0) << result.error;
  for (const char* part :
       {"2 x 64 tokens, 2 heads of 16, causal, 4160 visible pairs\n",
        "2 x 64 tokens, 2 heads of 16, window:8, 968 visible pairs\n",
        "2 x 64 tokens, 2 heads of 16, documents:16, 1088 visible pairs\n", "documents:mixed"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  std::ifstream file(folder_ / "a.json");
  const auto json = nlohmann::json::parse(file);
  ASSERT_EQ(json["cells"].size(), 8u) << "naive and flash of each";
  EXPECT_EQ(json["cells"][4]["mask"], "documents:16");
  EXPECT_DOUBLE_EQ(json["cells"][4]["visible_pairs"], 1088);
  for (const auto& made : json["cells"]) EXPECT_GT(made["backward"]["ms"], 0) << made;
}

TEST_F(BenchAttention, TellsWhatAMemberOfTheFamilyAdds) {
  const std::vector<std::string> extras{"dropout:0.1", "sinks", "alibi", "cap:50"};
  const ProcessResult result =
      bench({"--device", "cpu", "--seq-lens", "64", "--head-dims", "16", "--channels", "32", "--tokens", "64",
             "--masks", "causal", "--repeats", "1", "--with", "dropout:0.1,sinks,alibi,cap:50", "--json",
             "a.json"});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("what these add"), std::string::npos) << result.out;
  std::ifstream file(folder_ / "a.json");
  const auto json = nlohmann::json::parse(file);
  ASSERT_EQ(json["cells"].size(), 10u) << "naive and flash, each without and with";
  for (size_t i = 0; i < 10; ++i) {
    if (i % 5 == 0) continue;
    EXPECT_EQ(json["cells"][i]["with"], extras[i % 5 - 1]);
    EXPECT_TRUE(json["cells"][i].contains("adds"));
  }
}

TEST_F(BenchAttention, SkipsWhatWouldTakeTooLong) {
  const ProcessResult result = bench({"--device", "cpu", "--seq-lens", "4096", "--tokens", "4096", "--masks",
                                      "full", "--head-dims", "64", "--longest-ms", "1"});
  ASSERT_EQ(result.status, 0) << result.error;
  EXPECT_NE(result.out.find("skipped: over --longest-ms 1\n"), std::string::npos) << result.out;
}

TEST_F(BenchAttention, RefusesLoudly) {
  const auto refused = [&](const std::vector<std::string>& arguments, const char* part) {
    std::vector<std::string> all{"--device", "cpu"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const ProcessResult result = bench(all);
    EXPECT_NE(result.status, 0) << result.out;
    EXPECT_NE(result.error.find(part), std::string::npos)
        << "wanted: " << part << "\nfound:  " << result.error;
  };
  refused({"--rungs", "hopper"}, "naive, flash");
  refused({"--masks", "window"}, "causal, full, window:N, documents:N");
  refused({"--shape", "1,2,3"}, "B,N,H,D");
  refused({"--head-dims", "60"}, "head dim 60");
  refused({"--group", "3"}, "--group 3 does not divide");
  for (const char* extra : {"dropout:1", "dropout:-0.1", "dropout:0.999", "dropout:1e-9", "dropout:nan",
                            "dropout", "cap:0", "cap:x", "sink"})
    refused({"--with", extra}, "--with must be");
  for (const char* lengths : {"0", ""}) refused({"--seq-lens", lengths}, "--seq-lens");
  refused({"--seq-lens", "16", "--repeats", "1", "--head-dims", "64", "--json", "no/such/folder/a.json"},
          "cannot write");
}

TEST_F(BenchAttention, HelpNamesEveryOption) {
  const ProcessResult help = bench({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* part :
       {"--rungs", "--head-dims", "--masks", "--seq-lens", "--tokens", "--channels", "--group", "--shape",
        "--with", "--repeats", "--cudnn-deterministic", "--longest-ms", "--json", "--svg"})
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace tessera::testing
