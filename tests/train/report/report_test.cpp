// report.html of a run, the program report, and how the page does in a browser.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/browser.h"
#include "tests/train/plot/svg_support.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct ReportOfARun : TrainProgram {
  ReportOfARun()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 16\n  layers: 1\n  heads: 1\n  channels: 16\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 8\n  tokens_per_step: 32\n"
            "evaluation:\n  every: 4\n  sequences: 4\n"
            "sampling:\n  every: 4\n  tokens: 5\n  prompt: \"</script>\"\n"
            "checkpoint:\n  every: 4\n") {}

  std::string text(const std::string& name) const {
    std::ifstream file(folder / name);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }
  json data_of(const std::string& page) const {
    const std::string all = text(page), begin = "id=\"report\">";
    const size_t at = all.find(begin);
    EXPECT_NE(at, std::string::npos) << page;
    return json::parse(all.substr(at + begin.size(), all.find("</script>", at) - at - begin.size()));
  }
  ProcessResult report(const std::vector<std::string>& arguments) const {
    return run_process(REPORT_BINARY, arguments, {.folder = folder});
  }
};

TEST_F(ReportOfARun, HoldsItsCurvesAtTheEnd) {
  ASSERT_EQ(train({}).status, 0);
  const json page = data_of("out/report.html"), run = page["runs"][0];
  EXPECT_EQ(page["reload_seconds"], 0) << "the run has ended: the page stays as it is";
  EXPECT_EQ(run["name"], "out");
  EXPECT_EQ(run["curves"]["step"], json({1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(run["curves"]["tokens"].back(), 8 * 32);
  EXPECT_EQ(run["evaluations"]["step"], json({0, 4, 8}));
  EXPECT_EQ(run["state"], "finished");
  EXPECT_EQ(run["facts"]["steps"], 8);
  EXPECT_GT(run["memory"]["weights"], 0);
  std::string kinds;
  for (const json& event : run["events"]) kinds += event["kind"].get<std::string>() + " ";
  EXPECT_EQ(kinds, "start checkpoint checkpoint stop ");
  EXPECT_EQ(run["samples"].size(), 2u);
  EXPECT_EQ(run["samples"][0]["prompt"], "</script>");
  std::ifstream metrics(folder / "out/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const json one = json::parse(line);
    if (!one.contains("loss")) continue;
    const json& drawn = run["curves"]["loss"]["mean"][one["step"].get<size_t>() - 1];
    EXPECT_NEAR(drawn.get<double>(), one["loss"].get<double>(), 1e-5);
  }
}

TEST_F(ReportOfARun, HasWhatGoesOnInside) {
  ASSERT_EQ(train({"--set", "train.inside_every=2", "--set", "train.steps=6"}).status, 0);
  ASSERT_EQ(train({"--set", "train.inside_every=2", "--resume"}).status, 0);
  const json inside = data_of("out/report.html")["runs"][0]["inside"];
  for (const char* name :
       {"update_ratio/attention.qkv", "weight_norm/norm", "gradient_norm/mlp.expand",
        "update_norm/token_table", "attention_logit", "attention_entropy", "dead_units", "clipped"}) {
    ASSERT_TRUE(inside.contains(name)) << name;
    EXPECT_EQ(inside[name]["step"], json({2, 4, 6, 8})) << name << ": with those before the resume";
    EXPECT_EQ(inside[name]["0"]["mean"].size(), 4u);
    EXPECT_FALSE(inside[name].contains("1")) << "one layer";
  }
  EXPECT_EQ(inside["head_logit/layer 0"]["0"]["mean"].size(), 4u);
  std::ifstream metrics(folder / "out/metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const json one = json::parse(line);
    if (one["type"] != "inside") continue;
    const size_t column = one["step"].get<size_t>() / 2 - 1;
    EXPECT_EQ(inside["weight_norm/norm"]["0"]["mean"][column], one["weight_norm"]["norm"][0]);
  }
}

TEST_F(ReportOfARun, ChangesNoBitAndCanBeLeftOut) {
  ASSERT_EQ(train({}).status, 0);
  ASSERT_EQ(train({"--set", "train.folder=plain", "--set", "train.report=false"}).status, 0);
  EXPECT_FALSE(fs::exists(folder / "plain/report.html"));
  EXPECT_EQ(losses("out"), losses("plain"));
}

TEST_F(ReportOfARun, ThatCannotBeWrittenIsANoticeAndNotTheEnd) {
  fs::create_directories(folder / "out/report.html/in the way");
  const ProcessResult result = train({"--set", "train.steps=4"});
  EXPECT_EQ(result.status, 0) << result.error;
  const size_t at = result.out.find("cannot write out/report.html");
  EXPECT_NE(at, std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("no report:", at + 1), std::string::npos) << "said once";
}

TEST_F(ReportOfARun, IsThereWhileItGoesOn) {
  Process running(
      TRAIN_BINARY,
      {"--config", "small.yaml", "--set", "train.steps=1000000", "--set", "evaluation.every=0", "--set",
       "sampling.every=0", "--set", "checkpoint.every=0", "--set", "train.log_every=100000"},
      {.folder = folder});
  ASSERT_TRUE(wait_until([&] { return fs::exists(folder / "out/report.html") && !losses("out").empty(); }));
  EXPECT_GE(data_of("out/report.html")["reload_seconds"], 10) << "the page loads itself anew";
  running.signal(SIGTERM);
  EXPECT_EQ(running.finish().status, 0);
  const json page = data_of("out/report.html");
  EXPECT_EQ(page["reload_seconds"], 0);
  EXPECT_GT(page["runs"][0]["last"]["step"], 0);
}

// Does what a reader does: every x axis and scale, a pointer over every chart, a selection, and back.
constexpr const char* kReportReader = R"(<script>
const seen = [];
const sound = () => { for (const e of document.querySelectorAll("svg *"))
  for (const a of e.attributes) if (/NaN|undefined|Infinity/.test(a.value)) throw Error(`${e.tagName} ${a.name}=${a.value}`);
};
for (const x of ["seconds", "tokens", "step"])
  for (const scale of ["log", "linear"])
    for (const smooth of ["0", "5", "auto"])
      for (const outliers of ["1", ""]) {
        choose({ x, scale, smooth, outliers });
        sound();
      }
charts.forEach((chart, i) => {
  const svg = $(`chart_${i}`), box = svg.getBoundingClientRect();
  const middle = { clientX: box.left + box.width / 2, clientY: box.top + 50 };
  svg.dispatchEvent(new PointerEvent("pointermove", middle));
  if ($("tip").hidden) throw Error("no tip on " + chart.title);
  if (i === 0) seen.push("tip: " + $("tip").textContent);
  svg.dispatchEvent(new PointerEvent("pointerleave"));
});
const drawn = () => $("chart_0").querySelector("path.raw").getAttribute("d");
const before = drawn();
choose({ from: "2", to: "5" });
sound();
seen.push("zoomed: " + (before !== drawn()) + " " + !$("whole").hidden + " " +
  location.hash.includes("from=2"));
$("whole").click();
seen.push("back: " + (before === drawn()));
const samples = document.querySelectorAll("#samples article");
seen.push("samples: " + samples.length + " " + samples[0].textContent.startsWith("step"));
seen.push("validation: " + document.querySelectorAll("#chart_0 circle").length);
seen.push("runs: " + document.querySelectorAll("#runs_rows tr").length);
const marked = [...document.querySelectorAll("#chart_0 [data-event]")];
seen.push("marks: " + marked.map((e) => e.dataset.event).join(" "));
seen.push("state: " + $("state").textContent);
const canvas = $("inside"), pixels = () => canvas.toDataURL();
for (const inside of Object.keys(inside_run().inside))
  for (const x of ["seconds", "tokens", "step"]) {
    choose({ inside, x });
    if (!/in the end -?[0-9]/.test(canvas.getAttribute("aria-label"))) throw Error(canvas.getAttribute("aria-label"));
  }
choose({ inside: "update_ratio/attention.qkv" });
const first_map = pixels(), canvas_box = canvas.getBoundingClientRect();
const point_at = (column, layer) => canvas.dispatchEvent(new PointerEvent("pointermove", {
  clientX: canvas_box.left + (heat_place.edges[column][0] + heat_place.edges[column][1]) / 2,
  clientY: canvas_box.top + heat_place.top + (layer + 0.5) * heat_place.height }));
point_at(1, 1);
seen.push("heat: " + $("tip").textContent);
point_at(1, 2);
seen.push("absent: " + $("tip").textContent);
choose({ inside: "dead_units" });
choose({ inside: "expert_load/layer 2" });
point_at(1, 2);
seen.push("experts: " + $("tip").textContent);
choose({ inside: "dead_units" });
seen.push("other map: " + (first_map !== pixels()) + " " + $("inside_part").hidden + " " + $("inside_figure").options.length);
canvas.dispatchEvent(new PointerEvent("pointerleave"));
element(document.body, "div", { id: "seen" }, seen.join("; "));
</script>)";

struct PageInABrowser : ReportOfARun {
  // What kReportReader saw on the page.
  std::string seen(const std::string& browser, const std::string& page) {
    std::string tried = text(page);
    tried.replace(
        tried.find("<main>"), 0,
        "<script>onerror = (message) => document.body.setAttribute('data-error', message)</script>");
    tried.replace(tried.rfind("</body>"), 0, kReportReader);
    write("tried.html", tried);
    const ProcessResult result = open_in_browser(browser, folder, "tried.html");
    EXPECT_EQ(result.status, 0) << result.error;
    const size_t error = result.out.find("data-error=\"");
    EXPECT_EQ(error, std::string::npos) << result.out.substr(std::min(error, result.out.size()), 200);
    const size_t at = result.out.find("<div id=\"seen\">");
    EXPECT_NE(at, std::string::npos) << result.out.substr(0, 2000);
    return at == std::string::npos ? "" : result.out.substr(at, 2000);
  }
  static void expect(const std::string& found, std::initializer_list<const char*> parts) {
    for (const char* part : parts)
      EXPECT_NE(found.find(part), std::string::npos) << "wanted: " << part << "\nfound:  " << found;
  }
};

// A line of type "inside" of a model of three layers
std::string inside_line(const std::string& place, int step) {
  return R"({"type":"inside",)" + place +
         fmt::format(R"(,"update_ratio":{{"attention.qkv":[0.00{0},0.0{0},null],"token_table":[0.5]}},)"
                     R"("attention_logit":[1.5,2.5,{0}],"dead_units":[0,0.25,0],)"
                     R"("router_entropy":[1.5,null,1.25],"dead_experts":[0,null,0.25],)"
                     R"("expert_load":{{"layer 0":[1,0,2,1],"layer 2":[0.5,0.5,3,0]}},"clipped":0.{0}}})"
                     "\n",
                     step);
}

// Like what a run writes, with every type of line.
std::string metrics_of_a_run(const std::string& name, double floor) {
  std::string lines =
      R"({"type":"start","step":0,"tokens":0,"elapsed":0,"time":"2026-01-31T10:00:00.000Z","name":")" + name +
      R"(","steps":9,"parameters":1000,"device":"CPU","ranks":1,"tokens_per_step":32,"sequence_length":16})"
      "\n";
  for (int step = 1; step <= 9; ++step) {
    const std::string place = R"("step":)" + std::to_string(step) + R"(,"tokens":)" +
                              std::to_string(32 * step) + R"(,"elapsed":)" + std::to_string(2 * step);
    lines += R"({"type":"step",)" + place + R"(,"loss":)" +
             (step == 4 ? "null" : std::to_string(floor + 5.0 / step)) +
             R"(,"grad_norm":1.5,"learning_rate":0.001,"seconds":2,)"
             R"("tokens_per_second":16,"mfu":0.25,"memory_bytes":4096})"
             "\n";
    if (step == 1)
      lines += R"({"type":"memory",)" + place +
               R"(,"bytes_by_tag":{"weights":3000,"data":1096}})"
               "\n";
    if (step % 3 == 0) lines += inside_line(place, step);
    if (step % 3 == 0)
      lines += R"({"type":"evaluation",)" + place + R"(,"validation_loss":)" +
               std::to_string(floor + 5.5 / step) + "}\n" + R"({"type":"sample",)" + place +
               R"(,"prompt":"</script>","sample":"<b>bold</b>"})"
               "\n" +
               R"({"type":"checkpoint",)" + place +
               R"(,"path":"c/step_3","seconds":1})"
               "\n";
    if (step == 5)
      lines += R"({"type":"signal",)" + place +
               R"(,"signal":"SIGTERM"})"
               "\n" +
               R"({"type":"stop",)" + place +
               R"(,"reason":"signal","message":""})"
               "\n" +
               R"({"type":"resume",)" + place + R"(,"name":")" + name +
               R"(","steps":9,"checkpoint":"c/step_5"})"
               "\n";
  }
  return lines + R"({"type":"stop","step":9,"tokens":288,"elapsed":19,"reason":"finished","message":""})"
                 "\n";
}

TEST_F(PageInABrowser, OfOneRunWorks) {
  const std::string browser = find_browser();
  if (browser.empty()) GTEST_SKIP() << "no chromium on the PATH";
  fs::create_directories(folder / "a");
  write("a/metrics.jsonl", metrics_of_a_run("mine", 1));
  ASSERT_EQ(report({"a"}).status, 0);
  expect(seen(browser, "a/report.html"),
         {"tip: step 5, 160 tokens, 10 s", "zoomed: true true true", "back: true", "samples: 3 true",
          "validation: 3", "runs: 0", "marks: start checkpoint signal stop resume checkpoint checkpoint stop",
          "state: finished", "heat: step 6, 192 tokens, 22 sattention.qkv, layer 1: update / weight 0.06",
          "absent: step 6", "layer 2: update / weight none", "experts: step 6", "layer 2, expert 2: experts: load, 1 on average 3",
          "other map: true true 7"});
}

TEST_F(PageInABrowser, OfSeveralRunsWorks) {
  const std::string browser = find_browser();
  if (browser.empty()) GTEST_SKIP() << "no chromium on the PATH";
  for (const char* name : {"a", "b"}) {
    fs::create_directories(folder / name);
    write(std::string(name) + "/metrics.jsonl", metrics_of_a_run(name, name[0] == 'a' ? 1 : 2));
  }
  ASSERT_EQ(report({"a", "b", "--output", "both.html"}).status, 0);
  expect(seen(browser, "both.html"), {"heat: a, step 6", "tip: step 5", "a, training", "b, validation",
                                      "zoomed: true", "validation: 6", "runs: 2", "samples: 3"});
}

struct ReportProgram : ReportOfARun {
  ReportProgram() {
    for (const char* name : {"x/a", "y/a", "b"}) {
      fs::create_directories(folder / name);
      write(std::string(name) + "/metrics.jsonl", metrics_of_a_run("", name[0] == 'x' ? 1 : 2));
    }
  }
};

TEST_F(ReportProgram, WritesWhatItIsTold) {
  const ProcessResult both = report({"x/a", "b", "--output", "c.html", "--svg", "c.svg"});
  ASSERT_EQ(both.status, 0) << both.error;
  for (const char* part :
       {"validation loss", "a  ", "b  ", "1.6111", "2.6111 at 9", "written: c.html, c.svg"})
    EXPECT_NE(both.out.find(part), std::string::npos) << part << "\n" << both.out;
  EXPECT_EQ(data_of("c.html")["runs"].size(), 2u);
  expect_sound_svg(text("c.svg"));
  for (const char* part :
       {">2 runs<", ">a<", ">b<", "Gradient norm", "Learning rate", "stroke-dasharray=\"5 4\""})
    EXPECT_NE(text("c.svg").find(part), std::string::npos) << part;

  ASSERT_EQ(report({"b/metrics.jsonl", "--svg", "b.svg"}).status, 0);
  EXPECT_EQ(data_of("b/report.html")["runs"][0]["name"], "b");
  expect_sound_svg(text("b.svg"));
  EXPECT_NE(text("b.svg").find(">validation<"), std::string::npos);
  ASSERT_EQ(report({"b", "x/a"}).status, 0);
  EXPECT_TRUE(fs::exists(folder / "compare.html"));
}

// Of losses 5, 1.31, 1.2, 1 and 4, and of 1.4, 1.25 and 2: those up to 1.3 are drawn.
TEST_F(ReportProgram, DrawsValidationLossesCloseToTheLowest) {
  const auto run_of = [&](const std::string& name, const std::vector<double>& losses) {
    fs::create_directories(folder / name);
    std::string lines = "{\"type\":\"step\",\"step\":1,\"loss\":9}\n";
    for (size_t i = 0; i < losses.size(); ++i)
      lines +=
          fmt::format("{{\"type\":\"evaluation\",\"step\":{},\"validation_loss\":{}}}\n", i + 1, losses[i]);
    write(name + "/metrics.jsonl", lines);
  };
  run_of("low", {5, 1.31, 1.2, 1, 4});
  run_of("high", {1.4, 1.25, 2});
  run_of("none", {});
  const ProcessResult drawn = report({"low", "high", "none", "--validation-svg", "v.svg"});
  ASSERT_EQ(drawn.status, 0) << drawn.error;
  EXPECT_NE(drawn.out.find("written: compare.html, v.svg"), std::string::npos) << drawn.out;
  const std::string svg = text("v.svg");
  expect_sound_svg(svg);
  for (const char* part : {">Validation loss<", ">low<", ">high<"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  size_t dots = 0;
  for (size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++dots;
  EXPECT_EQ(dots, 3u) << svg;
  const ProcessResult nothing = report({"none", "--validation-svg", "n.svg"});
  EXPECT_EQ(nothing.status, 1);
  EXPECT_NE(nothing.error.find("did not evaluate"), std::string::npos) << nothing.error;
}

// Of each sequence length the first evaluation, and the newest of all: steps 0, 20 and 40
TEST_F(ReportProgram, DrawsTheLossByPosition) {
  const auto evaluation = [](int step, const std::string& ends, const std::string& losses) {
    return fmt::format(
        "{{\"type\":\"evaluation\",\"step\":{},\"validation_loss\":2,\"position_ends\":[{}],"
        "\"position_losses\":[{}]}}\n",
        step, ends, losses);
  };
  fs::create_directories(folder / "by_position");
  write("by_position/metrics.jsonl", evaluation(0, "1,2", "7,6") + evaluation(10, "1,2", "5,4") +
                                         "{\"type\":\"step\",\"step\":20,\"loss\":3}\n" +
                                         evaluation(20, "1,2,4", "5,4,8") + evaluation(30, "1,2,4", "5,4,6") +
                                         evaluation(40, "1,2,4", "5,null,3"));
  const ProcessResult drawn = report({"by_position", "--position-svg", "p.svg"});
  ASSERT_EQ(drawn.status, 0) << drawn.error;
  const std::string svg = text("p.svg");
  expect_sound_svg(svg);
  for (const char* part : {">Validation loss by position<", ">step 0<", ">step 20<", ">step 40<"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  for (const char* part : {">step 10<", ">step 30<"}) EXPECT_EQ(svg.find(part), std::string::npos) << part;
  size_t dots = 0;
  for (size_t at = 0; (at = svg.find("<circle", at)) != std::string::npos; ++at) ++dots;
  EXPECT_EQ(dots, 7u) << "2 + 3 + 2 losses\n" << svg;
  const json positions = data_of("by_position/report.html")["runs"][0]["positions"];
  ASSERT_EQ(positions.size(), 3u);
  EXPECT_EQ(positions[1]["step"], 20);
  fs::create_directories(folder / "plain");
  write("plain/metrics.jsonl", "{\"type\":\"step\",\"step\":1,\"loss\":3}\n");
  const ProcessResult nothing = report({"plain", "--position-svg", "n.svg"});
  EXPECT_EQ(nothing.status, 1);
  EXPECT_NE(nothing.error.find("evaluation.by_position=false"), std::string::npos) << nothing.error;
}

// The page and the terminal of a run that ended early
TEST_F(ReportProgram, TellsThatARunEndedEarly) {
  write("b/metrics.jsonl",
        R"({"type":"step","step":1,"loss":2})"
        "\n"
        R"({"type":"stop","step":1,"reason":"patience","message":"3 evaluations in a row"})"
        "\n");
  ASSERT_EQ(report({"b"}).status, 0);
  const json run = data_of("b/report.html")["runs"][0];
  EXPECT_EQ(run["state"], "patience");
  EXPECT_EQ(run["events"].back()["text"], "patience: 3 evaluations in a row");
}

TEST_F(ReportProgram, TellsRunsOfTheSameNameApart) {
  ASSERT_EQ(report({"x/a", "y/a"}).status, 0);
  const json page = data_of("compare.html");
  EXPECT_EQ(page["runs"][0]["name"], "x/a");
  EXPECT_EQ(page["runs"][1]["name"], "y/a");
}

TEST_F(ReportProgram, RefusesLoudly) {
  const auto refused = [&](const std::vector<std::string>& arguments,
                           std::initializer_list<const char*> parts) {
    const ProcessResult result = report(arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_TRUE(result.error.starts_with("report: error: ")) << result.error;
    for (const char* part : parts)
      EXPECT_NE(result.error.find(part), std::string::npos) << part << "\n" << result.error;
  };
  refused({}, {"folder of a run", "./report runs/quickstart"});
  refused({"none"}, {"none", "does not exist", "metrics.jsonl"});
  refused({"b", "--outptu", "c.html"}, {"--outptu", "did you mean --output?"});
  refused({"b", "--output", "no/such/folder/c.html"}, {"cannot write no/such/folder/c.html"});
  write("b/metrics.jsonl", "nothing of a run\n");
  refused({"b"}, {"b/metrics.jsonl", "no training step"});
  const ProcessResult help = report({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* part : {"--output", "--svg", "./report runs/a runs/b --output compare.html"})
    EXPECT_NE(help.out.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace tessera::testing
