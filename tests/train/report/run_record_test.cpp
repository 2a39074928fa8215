// What is read of metrics.jsonl: thinned without losing an extreme, tolerant of what may stand there.
#include "train/report/run_record.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "tests/data/support.h"
#include "train/report/line_tail.h"
#include "train/report/report_page.h"

namespace tessera::testing {
namespace {

TEST(ThinnedCurves, KeepEveryExtremeOfAMillionSteps) {
  ThinnedCurves curves(2);
  constexpr int64_t kSteps = 1'000'000;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const double value = step == 7 ? 50 : step == 123'457 ? -3 : step == kSteps ? 20 : 1;
    curves.add({.step = step, .tokens = 2.0 * static_cast<double>(step)}, std::array<double, 2>{value, NAN});
  }
  EXPECT_LE(curves.buckets().size(), ThinnedCurves::kMostBuckets);
  EXPECT_GT(curves.buckets().size(), ThinnedCurves::kMostBuckets / 3);
  int64_t count = 0;
  double sum = 0;
  for (const auto& [index, bucket] : curves.buckets()) {
    EXPECT_EQ(bucket.last.step / curves.width(), index);
    EXPECT_EQ(bucket.last.tokens, 2.0 * static_cast<double>(bucket.last.step));
    const auto holds = [&](int64_t step) { return step / curves.width() == index; };
    EXPECT_EQ(bucket.values[0].greatest, holds(7) ? 50 : holds(kSteps) ? 20 : 1) << index;
    EXPECT_EQ(bucket.values[0].least, holds(123'457) ? -3 : 1) << index;
    EXPECT_EQ(bucket.values[1].count, 0) << "what is not finite counts as absent";
    count += bucket.values[0].count;
    sum += bucket.values[0].sum;
  }
  EXPECT_EQ(count, kSteps);
  EXPECT_EQ(sum, kSteps - 3 + 50 - 3 + 20);
  EXPECT_EQ(curves.buckets().rbegin()->second.last.step, kSteps);
}

TEST(ThinnedCurves, HoldFewStepsAsTheyAre) {
  ThinnedCurves curves(1);
  for (int64_t step = 1; step <= 999; ++step)
    curves.add({.step = step}, std::array{static_cast<double>(step)});
  EXPECT_EQ(curves.width(), 1);
  EXPECT_EQ(curves.buckets().size(), 999u);
}

struct MetricsLines : InTempFolder {
  RunRecord read(const std::string& text) const {
    write("metrics.jsonl", text);
    return read_run(folder_);
  }
};

constexpr const char* kStart =
    R"({"type":"start","step":0,"tokens":0,"elapsed":0.5,"time":"2026-01-31T10:00:00.000Z",)"
    R"("name":"mine","steps":9,"parameters":1000})"
    "\n";

std::string step_line(int64_t step, double elapsed, double loss) {
  return fmt::format(
      R"({{"type":"step","step":{},"tokens":{},"elapsed":{},"time":"2026-01-31T10:00:0{}.000Z",)"
      R"("loss":{},"grad_norm":1,"learning_rate":1e-3,"seconds":2,)"
      R"("tokens_per_second":50,"mfu":0.5,"memory_bytes":4096}})"
      "\n",
      step, 100 * step, elapsed, step, loss);
}

TEST_F(MetricsLines, HoldTheAccuracyOfEachTask) {
  const auto line = [](int step, const std::string& tasks) {
    return fmt::format(
        R"({{"type":"evaluation","step":{},"tokens":{},"elapsed":1,"validation_loss":2,"tasks":{}}})"
        "\n",
        step, 10 * step, tasks);
  };
  const RunRecord run = read(
      std::string(kStart) + "\n" +
      R"({"type":"step","step":1,"tokens":10,"elapsed":0.6,"loss":5})"
      "\n" +
      line(1,
           R"({"a":{"items":4,"accuracy":0.25,"accuracy_interval":[0.1,0.6]},"b</script>":{"accuracy":1}})") +
      line(2, R"({"a":{"accuracy":0.5}, "c":{"accuracy":null}, "d":3})") + line(3, "[1]"));
  ASSERT_EQ(run.tasks().size(), 2u);
  const ThinnedCurves& a = run.tasks().at("a");
  ASSERT_EQ(a.buckets().size(), 2u);
  EXPECT_EQ(a.buckets().rbegin()->second.values[0].mean(), 0.5);
  EXPECT_EQ(run.evaluations().buckets().size(), 3u);
  EXPECT_EQ(run.unreadable_lines(), 0);
  const nlohmann::json page = nlohmann::json::parse(report_json({.runs = std::span(&run, 1), .written = ""}));
  EXPECT_EQ(page["runs"][0]["tasks"]["a"]["accuracy"]["mean"], (std::vector<double>{0.25, 0.5}));
  EXPECT_EQ(page["runs"][0]["tasks"]["b</script>"]["step"], std::vector<double>{1});
}

TEST_F(MetricsLines, OfEachTypeAreTaken) {
  const RunRecord run =
      read(std::string(kStart) + step_line(1, 3, 5.5) +
           R"({"type":"memory","step":1,"elapsed":3,"bytes_by_tag":{"weights":4000,"data":96,"attention":0}})"
           "\n"
           R"({"type":"evaluation","step":1,"tokens":100,"elapsed":4,"validation_loss":5.25})"
           "\n" +
           step_line(2, 6, 4.5) +
           R"({"type":"evaluation","step":2,"tokens":200,"elapsed":7,"validation_loss":5.75})"
           "\n"
           R"({"type":"sample","step":2,"elapsed":8,"prompt":"a","sample":"b"})"
           "\n"
           R"({"type":"checkpoint","step":2,"elapsed":9,"path":"c/step_00000002","best":true})"
           "\n"
           R"({"type":"rewind","step":2,"elapsed":9,"bad_step":3,"reason":"spike","loss":9})"
           "\n"
           R"({"type":"signal","step":2,"elapsed":9,"signal":"SIGTERM"})"
           "\n"
           R"({"type":"stop","step":2,"elapsed":10,"reason":"signal","message":""})"
           "\n"
           R"({"type":"of a later version","step":2})"
           "\n");
  EXPECT_EQ(run.name, "mine");
  EXPECT_EQ(run.state(), "signal");
  EXPECT_EQ(run.facts().at("steps"), 9);
  EXPECT_EQ(run.last().step, 2);
  EXPECT_EQ(run.last().tokens, 200);
  EXPECT_EQ(run.last().seconds, 10);
  EXPECT_EQ(run.tokens_per_second(), 50);
  EXPECT_EQ(run.last_validation()->value, 5.75);
  EXPECT_EQ(run.best_validation()->value, 5.25);
  EXPECT_EQ(run.best_validation()->step, 1);
  EXPECT_EQ(run.memory(), (std::map<std::string, double>{{"data", 96}, {"weights", 4000}}));
  ASSERT_EQ(run.samples().size(), 1u);
  EXPECT_EQ(run.samples()[0].text, "b");
  std::string kinds;
  for (const RunRecord::Event& event : run.events()) kinds += event.kind + " ";
  EXPECT_EQ(kinds, "start best rewind signal stop ");
  EXPECT_EQ(run.started(), "2026-01-31T10:00:00.000Z");
  EXPECT_EQ(run.unreadable_lines(), 0);
}

TEST_F(MetricsLines, OfAResumedRunAddUpTheTimeOfItsProcesses) {
  const RunRecord run = read(
      std::string(kStart) + step_line(1, 30, 5) +
      R"({"type":"stop","step":1,"elapsed":40,"reason":"signal"})"
      "\n"
      R"({"type":"resume","step":1,"tokens":100,"elapsed":5,"checkpoint":"runs/a/checkpoints/step_00000001"})"
      "\n" +
      step_line(2, 7, 4));
  EXPECT_EQ(run.last().seconds, 47);
  EXPECT_EQ(run.state(), "running") << "it goes on";
  EXPECT_EQ(run.events().back().text, "runs/a/checkpoints/step_00000001");
}

TEST_F(MetricsLines, OfOlderVersionsAndFaultyOnesDoNoHarm) {
  const RunRecord run = read(
      R"({"step":1,"loss":5.0,"grad_norm":1.0,"learning_rate":0.001,)"
      R"("seconds":2.0,"tokens_per_second":512.0,"mfu":0.1,"memory_bytes":1024})"
      "\n"
      R"({"step":1,"validation_loss":4.75,"validation_sequences":8})"
      "\n"
      R"({"step":1,"prompt":"p","sample":"s"})"
      "\n"
      R"({"step":2,"loss":null,"grad_norm":1e999,"seconds":2.0,"tokens_per_second":512.0})"
      "\n"
      "\n"
      "no JSON at all\n"
      R"({"step":3,"loss":NaN})"
      "\n"
      R"({"step":-1,"loss":1.0})"
      "\n"
      R"({"step":null,"loss":1.0})"
      "\n"
      R"(["step"])"
      "\n" +
      std::string(200'000, '[') + "\n" + R"({"step":4,"loss":3.0,"seconds":2.0,"tokens_per_second":512.0})" +
      "\n" + R"({"step":5,"loss":9.0,"sec)");
  EXPECT_EQ(run.last().step, 4) << "the line after all those; not the torn last one";
  EXPECT_EQ(run.last().tokens, 4 * 1024);
  EXPECT_EQ(run.last().seconds, 6 - 2) << "the line with 1e999 is no JSON for a double";
  EXPECT_EQ(run.last_validation()->value, 4.75);
  EXPECT_EQ(run.samples().size(), 1u);
  EXPECT_EQ(run.state(), "running");
  EXPECT_EQ(run.unreadable_lines(), 7);
}

TEST_F(MetricsLines, NullsAreCountedAndLeftOut) {
  const RunRecord run = read(std::string(kStart) + R"({"type":"step","step":1,"loss":null,"grad_norm":2.0})"
                                                   "\n");
  EXPECT_EQ(run.values_not_finite(), 1);
  EXPECT_EQ(run.steps().buckets().begin()->second.values[0].count, 0);
  EXPECT_EQ(run.steps().buckets().begin()->second.values[1].count, 1);
  EXPECT_NE(report_json({.runs = std::span(&run, 1), .written = ""}).find("\"loss\":{\"mean\":[null]"),
            std::string::npos);
}

TEST_F(MetricsLines, WithoutAStepAreRefused) {
  for (const auto& [text, part] :
       {std::pair(std::string(kStart), "no training step"), {"", "no training step"}}) {
    try {
      read(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(read_run(folder_ / "none"), Error);
}

TEST_F(MetricsLines, ABoundedNumberOfSamplesAndEventsIsKept) {
  RunRecord run;
  for (int64_t step = 1; step <= 5000; ++step) {
    run.add(fmt::format(R"({{"type":"sample","step":{},"prompt":"p","sample":"{}"}})", step,
                        std::string(30'000, 'x')));
    run.add(fmt::format(R"({{"type":"checkpoint","step":{},"path":"p"}})", step));
    if (step % 1000 == 0) run.add(fmt::format(R"({{"type":"resume","step":{}}})", step));
  }
  EXPECT_LE(run.samples().size(), RunRecord::kMostSamples);
  EXPECT_EQ(run.samples().front().at.step, 1) << "the first is kept";
  EXPECT_EQ(run.samples().back().at.step, 5000);
  EXPECT_LE(run.samples().back().text.size(), RunRecord::kMostSampleBytes + 3);
  EXPECT_LE(run.events().size(), RunRecord::kMostEvents);
  EXPECT_EQ(std::count_if(run.events().begin(), run.events().end(),
                          [](const auto& e) { return e.kind == "resume"; }),
            5);
}

TEST_F(MetricsLines, AreVisitedOnceAsTheFileGrows) {
  LineTail tail(folder_ / "metrics.jsonl");
  EXPECT_THROW(tail.read([](auto...) {}), Error) << "there is no file";
  std::vector<std::pair<std::string, int64_t>> seen;
  const auto read_on = [&] {
    seen.clear();
    tail.read([&](std::string_view line, int64_t offset) { seen.push_back({std::string(line), offset}); });
    return seen;
  };
  using Seen = std::vector<std::pair<std::string, int64_t>>;
  write("metrics.jsonl", "one\ntw");
  EXPECT_EQ(read_on(), (Seen{{"one", 0}}));
  EXPECT_EQ(read_on(), Seen{}) << "a torn line waits for its end";
  std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << "o\n\nfour\n";
  EXPECT_EQ(read_on(), (Seen{{"two", 4}, {"", 8}, {"four", 9}}));
  EXPECT_FALSE(tail.was_replaced());
  write("metrics.jsonl", "new\n");
  EXPECT_TRUE(tail.was_replaced());
  EXPECT_EQ(read_on(), (Seen{{"new", 0}}));
  const std::string huge(40 << 20, 'x');
  std::ofstream(folder_ / "metrics.jsonl", std::ios::app) << huge << "\nafter\n";
  ASSERT_EQ(read_on().size(), 2u);
  EXPECT_LE(seen[0].first.size(), size_t{18} << 20) << "a line without end takes no memory without end";
  EXPECT_EQ(seen[1].first, "after");
}

TEST(ReportPage, OfAMillionStepsIsSmall) {
  RunRecord run;
  run.name = "long";
  for (int64_t step = 1; step <= 100'000; ++step)
    run.add(
        fmt::format(R"({{"type":"step","step":{},"tokens":{},"elapsed":{},"loss":{},"grad_norm":{},)"
                    R"("learning_rate":0.000123456,"seconds":0.1,"tokens_per_second":123456.7,"mfu":0.4567,)"
                    R"("memory_bytes":123}})",
                    step, step * 4096, 0.1 * static_cast<double>(step),
                    2 + std::sin(static_cast<double>(step)), 1 + std::cos(static_cast<double>(step))));
  EXPECT_LE(run.steps().buckets().size(), 1000u);
  EXPECT_LT(report_page({.runs = std::span(&run, 1), .written = ""}).size(), size_t{400} << 10);
}

TEST(ReportPage, NoTextInARunEndsItsData) {
  RunRecord run;
  run.name = "</script><b>&";
  run.add(R"({"type":"step","step":1,"loss":2.5})");
  run.add(
      R"({"type":"sample","step":1,"prompt":"<!--","sample":"</script><script>alert(1)</script> \"quoted\""})");
  const std::string page = report_page({.runs = std::span(&run, 1), .written = "2026-01-31T10:00:00Z"});
  const std::string begin = "id=\"report\">";
  const size_t at = page.find(begin) + begin.size(), end = page.find("</script>", at);
  const auto json = nlohmann::json::parse(page.substr(at, end - at));
  EXPECT_EQ(json["runs"][0]["name"], run.name);
  EXPECT_EQ(json["runs"][0]["samples"][0]["text"], "</script><script>alert(1)</script> \"quoted\"");
  EXPECT_EQ(json["runs"][0]["curves"]["loss"]["mean"][0], 2.5);
  EXPECT_EQ(page.find("REPORT_"), std::string::npos) << "a place of the template was not filled";
  for (const char* outside : {"src=", "href=", "@import", "fetch(", "XMLHttpRequest", "https://"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

// A million steps of a large model: 48 layers, 20 figures of each, recorded at every tenth step of the last
TEST(ReportPage, OfWhatGoesOnInsideIsBounded) {
  RunRecord run;
  std::string parts;
  for (int part = 0; part < 20; ++part) {
    parts += fmt::format("{}\"part {}\":[", part > 0 ? "," : "", part);
    for (int layer = 0; layer < 48; ++layer) parts += layer > 0 ? ",0.0012345" : "null";
    parts += "]";
  }
  for (int64_t step = 1000; step <= 1'000'000; step += 1000)
    run.add(fmt::format(R"({{"type":"inside","step":{},"update_ratio":{{{}}},"clipped":{}}})", step, parts,
                        step == 500'000 ? 1 : 0));
  ASSERT_EQ(run.inside().size(), 21u);
  const ThinnedCurves& one = run.inside().at("update_ratio/part 3");
  EXPECT_EQ(one.curves(), 48u);
  EXPECT_LE(one.buckets().size(), RunRecord::kMostColumns);
  EXPECT_GT(one.buckets().size(), RunRecord::kMostColumns / 3);
  EXPECT_EQ(one.buckets().begin()->second.values[0].count, 0) << "null is absent";
  EXPECT_NEAR(one.buckets().begin()->second.values[47].mean(), 0.0012345, 1e-12);
  double clipped = 0;
  for (const auto& [index, bucket] : run.inside().at("clipped").buckets()) clipped += bucket.values[0].sum;
  EXPECT_EQ(clipped, 1);
  EXPECT_LT(report_page({.runs = std::span(&run, 1), .written = ""}).size(), size_t{2} << 20);
}

TEST(ReportPage, IsSoundWhateverStandsInALineOfInside) {
  RunRecord run;
  for (const char* line :
       {R"({"type":"inside","step":1,"a":{"b":[1,2]},"c":[],"d":"text","e":{"f":{}},"g":true})",
        R"({"type":"inside","step":2,"a":{"b":[1,2,3]},"c":[null,"x"]})",
        R"({"type":"inside","step":3,"a":{"b":[5,"</script>"]}})"})
    run.add(line);
  EXPECT_EQ(run.inside().size(), 2u);
  EXPECT_EQ(run.inside().at("a/b").buckets().size(), 2u) << "a line of another model is left out";
  for (int i = 0; i < 300; ++i) run.add(fmt::format(R"({{"type":"inside","step":4,"figure {}":[1]}})", i));
  EXPECT_EQ(run.inside().size(), RunRecord::kMostInside);
  const std::string data = report_json({.runs = std::span(&run, 1), .written = ""});
  const nlohmann::json parsed = nlohmann::json::parse(data);
  EXPECT_EQ(parsed["runs"][0]["inside"]["a/b"]["1"]["mean"], (nlohmann::json{2, nullptr}));
}

}  // namespace
}  // namespace tessera::testing
