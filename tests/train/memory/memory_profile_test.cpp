// ./train --memory-profile: what its three files say of a small run, and how the page does in a browser.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tests/browser.h"
#include "tests/train_program.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct MemoryProfileOfARun : TrainProgram {
  MemoryProfileOfARun()
      : TrainProgram(
            "device: cpu\n"
            "model:\n  vocab_size: 257\n  context: 32\n  layers: 3\n  heads: 2\n  channels: 32\n"
            "  attention: naive\n"
            "data:\n  train: text.txt\n"
            "train:\n  folder: out\n  steps: 4\n  tokens_per_step: 384\n  micro_batch: 4\n"
            "evaluation:\n  every: 2\n  sequences: 4\n"
            "sampling:\n  every: 4\n  tokens: 5\n"
            "checkpoint:\n  every: 0\n") {}

  std::string text(const std::string& name) const {
    std::ifstream file(folder / "profile" / name);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
  }

  void profile_a_run() {
    const ProcessResult result = train({"--memory-profile", "profile"});
    ASSERT_EQ(result.status, 0) << result.error;
    EXPECT_NE(result.out.find("memory profile: profile/memory.html"), std::string::npos) << result.out;
  }
};

TEST_F(MemoryProfileOfARun, SumsToThePeakThatWasPlanned) {
  profile_a_run();
  const json memory = json::parse(text("memory.json"));
  EXPECT_TRUE(memory["complete"]);
  EXPECT_EQ(memory["plan"], memory["run_peak"]);
  const int64_t peak = memory["recorded_peak"]["order"];
  std::map<std::string, int64_t> at_peak;
  std::map<int64_t, int64_t> change;  // by the number of a birth or a death
  for (const json& a : memory["allocations"]) {
    const int64_t born = a["born"], bytes = a["bytes"];
    EXPECT_TRUE(change.emplace(born, bytes).second) << a;
    if (a["died"].is_null()) {
      EXPECT_EQ(memory["phases"][a["phase"].get<size_t>()]["path"], "setup") << a;
    } else {
      EXPECT_GT(a["died"].get<int64_t>(), born) << a;
      EXPECT_GE(a["died_ns"].get<int64_t>(), a["born_ns"].get<int64_t>()) << a;
      EXPECT_TRUE(change.emplace(a["died"], -bytes).second) << a;
    }
    if (born <= peak && (a["died"].is_null() || a["died"].get<int64_t>() > peak)) at_peak[a["tag"]] += bytes;
  }
  int64_t sum = 0;
  for (const auto& [tag, bytes] : memory["run_peak"]["by_tag"].items()) {
    EXPECT_EQ(at_peak[tag], bytes.get<int64_t>()) << tag;
    sum += at_peak[tag];
  }
  EXPECT_EQ(sum, memory["run_peak"]["bytes"].get<int64_t>());
  EXPECT_GT(at_peak["attention"], 0);

  int64_t alive = 0, most = 0;
  for (const auto& [order, bytes] : change) most = std::max(most, alive += bytes);
  EXPECT_EQ(most, sum);
  EXPECT_EQ(change.rbegin()->first + 1, static_cast<int64_t>(change.size())) << "a number is missing";
  EXPECT_EQ(memory["births_and_deaths"].get<size_t>(), change.size());
}

TEST_F(MemoryProfileOfARun, NamesThePhasesAndOmitsTheirRepetitions) {
  profile_a_run();
  const json memory = json::parse(text("memory.json"));
  std::set<std::string> paths, made_in;
  for (const json& phase : memory["phases"]) {
    paths.insert(phase["path"]);
    EXPECT_LE(phase["begin"].get<int64_t>(), phase["end"].get<int64_t>()) << phase;
    EXPECT_LE(phase["begin_ns"].get<int64_t>(), phase["end_ns"].get<int64_t>()) << phase;
  }
  for (const char* path :
       {"setup", "load weights", "step 1", "step 2/micro-batch 2/forward/block 2",
        "step 2/micro-batch 1/backward/block 0", "step 1/micro-batch 1/backward/head", "step 1/optimizer",
        "evaluation 2/batch 1/forward/block", "evaluation 1/batch 1/head", "sampling 1/prompt 1",
        "checkpoint 1", "step 1/not recorded", "not recorded"})
    EXPECT_TRUE(paths.contains(path)) << path;
  for (const char* path : {"step 3", "step 1/micro-batch 3", "sampling 1/prompt 2"})
    EXPECT_FALSE(paths.contains(path)) << path;
  for (const json& a : memory["allocations"])
    made_in.insert(a["name"].get<std::string>() + ": " +
                   memory["phases"][a["phase"].get<size_t>()]["path"].get<std::string>());
  for (const char* made :
       {"qkv: step 1/micro-batch 1/forward/block 1", "gradient of qkv: step 1/micro-batch 1/backward/block 1",
        "logits: step 2/micro-batch 2/backward/head", "kernel workspace: setup"})
    EXPECT_TRUE(made_in.contains(made)) << made;
}

TEST_F(MemoryProfileOfARun, TheTraceIsBalanced) {
  profile_a_run();
  const json memory = json::parse(text("memory.json")), trace = json::parse(text("memory_trace.json"));
  std::map<int64_t, int> open;
  std::map<std::string, size_t> kinds;
  json last_counter;
  for (const json& event : trace["traceEvents"]) {
    const std::string kind = event["ph"];
    ++kinds[kind];
    for (const char* key : {"name", "ts", "pid", "tid"}) EXPECT_TRUE(event.contains(key)) << event;
    EXPECT_GE(event["ts"].get<double>(), 0);
    if (kind == "b") {
      EXPECT_EQ(open[event["id"]]++, 0) << event;
    }
    if (kind == "e") {
      EXPECT_EQ(open[event["id"]]--, 1) << event;
    }
    if (kind == "X") {
      EXPECT_GE(event["dur"].get<double>(), 0) << event;
    }
    if (kind == "C") last_counter = event["args"];
  }
  for (const auto& [id, count] : open) EXPECT_EQ(count, 0) << id;
  EXPECT_EQ(kinds["b"], memory["allocations"].size());
  EXPECT_EQ(kinds["C"], memory["births_and_deaths"].get<size_t>());
  EXPECT_EQ(kinds["X"], memory["phases"].size());
  // At the end only what the setup made is alive.
  std::map<std::string, int64_t> lasting;
  for (const json& a : memory["allocations"])
    if (a["died"].is_null()) lasting[a["tag"]] += a["bytes"].get<int64_t>();
  for (const auto& [tag, bytes] : last_counter.items()) EXPECT_EQ(bytes.get<int64_t>(), lasting[tag]) << tag;
}

TEST_F(MemoryProfileOfARun, ChangesNoBitOfTheRun) {
  profile_a_run();
  ASSERT_EQ(train({"--set", "train.folder=plain"}).status, 0);
  EXPECT_EQ(losses("out"), losses("plain"));
}

TEST_F(MemoryProfileOfARun, TakesAnExistingFolderAndRefusesWhatItCannotWrite) {
  fs::create_directories(folder / "profile");
  write("profile/mine.txt", "mine");
  write("profile/memory.json", "of an earlier run");
  profile_a_run();
  EXPECT_EQ(text("mine.txt"), "mine");
  EXPECT_TRUE(json::accept(text("memory.json")));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "profile"), fs::directory_iterator{}), 4);

  refused({"--overwrite", "--memory-profile", "text.txt"}, {"text.txt", "--memory-profile FOLDER"});
  refused({"--overwrite", "--memory-profile", "text.txt/below"}, {"text.txt/below", "--memory-profile"});
  refused({"--overwrite", "--memory-profile", "/proc/none"}, {"/proc/none", "--memory-profile FOLDER"});
  EXPECT_TRUE(fs::exists(folder / "out/checkpoints/step_00000004")) << "refused, yet it removed a checkpoint";
  for (const std::vector<std::string>& wrong :
       {std::vector<std::string>{"--memory-profile", "a", "--memory-profile", "b"},
        std::vector<std::string>{"--memory-profile", ""}, std::vector<std::string>{"--memory-profile"}}) {
    const ProcessResult result = train(wrong);
    EXPECT_NE(result.status, 0);
    EXPECT_NE(result.error.find("--memory-profile"), std::string::npos) << result.error;
  }
  EXPECT_FALSE(fs::exists(folder / "a"));
}

TEST_F(MemoryProfileOfARun, ThePageNeedsNothingElse) {
  profile_a_run();
  const std::string page = text("memory.html");
  for (const char* outside : {"src=", "href=", "@import", "fetch(", "url(", "XMLHttpRequest", "https://"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  // The one address is the name of SVG's elements, which nothing is loaded from.
  EXPECT_EQ(page.find("http://"), page.find("http://www.w3.org/2000/svg"));
  EXPECT_EQ(page.find("PROFILE_DATA"), std::string::npos);
}

TEST_F(MemoryProfileOfARun, ABrowserIsLookedForWhereThePathMayBeRead) {
  fs::create_directories(folder / "closed");
  fs::create_directories(folder / "open");
  for (const char* name : {"open/chromium", "closed/chromium"}) {
    write(name, "#!/bin/sh\n");
    fs::permissions(folder / name, fs::perms::owner_all);
  }
  write("no_folder", "");
  fs::permissions(folder / "closed", fs::perms::none);
  std::string found;
  {
    const WithoutRightsOverFiles nobody;
    found = find_browser((folder / "closed").string() + "::" + (folder / "no_folder").string() +
                         ":/nowhere:" + (folder / "open").string());
  }
  fs::permissions(folder / "closed", fs::perms::owner_all);
  EXPECT_EQ(found, folder / "open/chromium");
}

// Does what a reader does: moves over the chart, chooses moments, and looks at every range on both axes.
constexpr const char* kReader = R"(<script>
const seen = [];
for (const axis of ["order", "time"]) {
  $("axis").value = axis;
  for (const option of $("range").options) {
    $("range").value = option.value;
    $("range").dispatchEvent(new Event("change"));
    for (const path of document.querySelectorAll("path")) if (/NaN|undefined/.test(path.getAttribute("d"))) throw Error("path");
  }
}
$("axis").value = "order"; $("range").value = "all"; draw();
const box = $("chart").getBoundingClientRect();
$("chart").dispatchEvent(new PointerEvent("pointermove", { clientX: box.left + box.width / 2, clientY: box.top + 20 }));
seen.push("tip: " + !$("tip").hidden + " " + /attention/.test($("tip").textContent));
$("range").value = "0"; draw();  // the setup is short: every column is one state
$("slider").value = 3; $("slider").dispatchEvent(new Event("input"));
seen.push("chosen: " + $("alive").rows.length + " " + $("alive_title").textContent);
$("range").value = "all";
$("to_peak").click();
$("more").click();
let sum = 0;
for (const row of $("alive").rows) sum += parseInt(row.cells[3].title);
seen.push("sum: " + sum);
seen.push("drawn: " + Math.max(...columns.map((s) => total[s])) + " to " + total[count]);
seen.push("title: " + $("alive_title").textContent);
seen.push("paths: " + document.querySelectorAll("path[data-tag]").length);
element(document.body, "div", { id: "seen" }, seen.join("; "));
</script>)";

TEST_F(MemoryProfileOfARun, ThePageWorksInABrowser) {
  const std::string browser = find_browser();
  if (browser.empty()) GTEST_SKIP() << "no chromium on the PATH";
  profile_a_run();
  const json memory = json::parse(text("memory.json"));
  std::string page = text("memory.html");
  page.replace(page.find("<main>"), 0,
               "<script>onerror = (message) => document.body.setAttribute('data-error', message)</script>");
  page.replace(page.find("</body>"), 0, kReader);
  write("tried.html", page);
  const ProcessResult result = open_in_browser(browser, folder, "tried.html");
  ASSERT_EQ(result.status, 0) << result.error;
  const size_t error = result.out.find("data-error=\"");
  ASSERT_EQ(error, std::string::npos) << result.out.substr(error, 200);
  const size_t at = result.out.find("<div id=\"seen\">");
  ASSERT_NE(at, std::string::npos) << result.out.substr(0, 2000);
  int64_t lasting = 0;
  for (const json& a : memory["allocations"])
    if (a["died"].is_null()) lasting += a["bytes"].get<int64_t>();
  const std::string peak = memory["recorded_peak"]["bytes"].dump();
  const std::string seen = result.out.substr(at, 300);
  for (const std::string& part :
       {std::string("tip: true true"), std::string("chosen: 3 Alive at the moment you chose"),
        "sum: " + peak + ";", "drawn: " + peak + " to " + std::to_string(lasting) + ";",
        std::string("title: Alive at the peak")})
    EXPECT_NE(seen.find(part), std::string::npos) << "wanted: " << part << "\nfound:  " << seen;
  size_t tags = 0;
  for (const json& tag : memory["tags"]) {
    bool held = false;
    for (const json& a : memory["allocations"])
      held = held || (a["tag"] == tag && a["bytes"].get<int64_t>() > 0);
    tags += held;
  }
  EXPECT_NE(seen.find("paths: " + std::to_string(tags) + "<"), std::string::npos) << seen;
}

}  // namespace
}  // namespace tessera::testing
