#include "train/report/run_report.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/file.h"
#include "kernels/base/system_error.h"
#include "kernels/base/text.h"
#include "train/report/metrics.h"
#include "train/report/report_page.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

double now_seconds() {  // since 1970
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// The seconds of a line's "time", "2026-01-31T23:59:59.123Z"; now, if it has none.
double wall_time(const Json& line) {
  const auto time = line.find("time");
  if (time == line.end() || !time->is_string()) return now_seconds();
  std::tm utc{};
  double seconds = 0;
  if (std::sscanf(time->get<std::string>().c_str(), "%d-%d-%dT%d:%d:%lfZ", &utc.tm_year, &utc.tm_mon,
                  &utc.tm_mday, &utc.tm_hour, &utc.tm_min, &seconds) != 6)
    return now_seconds();
  utc.tm_year -= 1900;
  utc.tm_mon -= 1;
  return static_cast<double>(timegm(&utc)) + seconds;
}

// Of a loss of pairs
constexpr std::array kOfPairs = {"reward_chosen",   "reward_rejected", "reward_margin",
                                 "reward_accuracy", "logp_chosen",     "logp_rejected"};

// The first event of a process tells TensorBoard from which step on earlier files no longer count.
void add_scalars(EventFile& events, const Json& line, bool first) {
  const double wall = wall_time(line);
  const int64_t step = line["step"].get<int64_t>();
  const auto add = [&](const std::string& tag, const char* key) {
    const auto value = line.find(key);
    if (value != line.end() && value->is_number()) events.scalar(tag, step, wall, value->get<double>());
  };
  if (first)
    events.start(line["type"] == "start"                               ? 0
                 : line["type"] == "resume" || line["type"] == kRewind ? step + 1
                                                                       : step,
                 wall);
  const auto add_all = [&](const char* group, const auto& keys) {
    for (const char* key : keys) add(fmt::format("{}/{}", group, key), key);
  };
  if (line["type"] == "step") add_all("train", RunRecord::kStepCurves), add_all("train", kOfPairs);
  if (line["type"] == "inside")
    visit_inside(line, [&](const std::string& name, const std::vector<double>& values) {
      for (size_t layer = 0; layer < values.size(); ++layer) {
        const std::string of_layer = values.size() > 1 ? fmt::format("/{}", layer) : "";
        if (std::isfinite(values[layer]))
          events.scalar(fmt::format("inside/{}{}", name, of_layer), step, wall, values[layer]);
      }
    });
  if (line["type"] != "evaluation") return;
  add("validation/loss", "validation_loss");
  add_all("validation", kOfPairs);
  if (const auto tasks = line.find("tasks"); tasks != line.end() && tasks->is_object())
    for (const auto& [task, figures] : tasks->items())
      if (figures.is_object() && figures.contains("accuracy") && figures["accuracy"].is_number())
        events.scalar(fmt::format("tasks/{}", task), step, wall, figures["accuracy"].get<double>());
}

fs::path metrics_of(const Config& config) { return fs::path(config.train.folder) / kMetricsFile; }

}  // namespace

RunReport::RunReport(const Config& config, StatusLine& line, std::function<void()> check_folder)
    : folder_(config.train.folder),
      page_(config.train.report),
      line_(line),
      check_folder_(std::move(check_folder)),
      tail_(metrics_of(config)) {
  if (config.train.tensorboard) events_.emplace(folder_ / "tensorboard");
  std::error_code error;
  const auto size = fs::file_size(metrics_of(config), error);
  first_new_ = error ? 0 : static_cast<int64_t>(size);
}

RunReport::~RunReport() { guarded(false); }

void RunReport::refresh() {
  if (Clock::now() < next_) return;
  const Clock::time_point start = Clock::now();
  guarded(true);
  const double took = std::chrono::duration<double>(Clock::now() - start).count();
  every_ = std::max(kSeconds, kShare * took);
  next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(every_));
}

void RunReport::guarded(bool running) {
  if (!page_ && !events_) return;
  try {
    follow();
    if (lost_folder()) return;
    if (events_) events_->flush();
    if (page_) write_page(running);
    failed_ = false;
  } catch (const std::exception& error) {
    if (!std::exchange(failed_, true))
      line_.notice(fmt::format("no report: {}. The run continues without it", error_text(error)));
  }
}

bool RunReport::lost_folder() const {
  try {
    check_folder_();
    return false;
  } catch (const Error&) {  // the run finds it as well, with the next line that it writes
    return true;
  }
}

void RunReport::follow() {
  if (tail_.was_replaced()) record_ = {}, first_new_ = 0;
  tail_.read([&](std::string_view line, int64_t offset) {
    record_.add(line);
    if (!events_ || offset < first_new_) return;
    if (const Json json = parse_metrics_line(line); !json.is_null())
      add_scalars(*events_, json, !std::exchange(any_new_, true));
  });
}

void RunReport::write_page(bool running) {
  record_.folder = folder_.string();
  if (record_.name.empty()) record_.name = fs::absolute(folder_).lexically_normal().filename().string();
  write_file(folder_ / "report.html", report_page({.runs = std::span(&record_, 1),
                                                   .written = utc_time(),
                                                   .reload_seconds = running ? std::ceil(every_) : 0}));
}

}  // namespace tessera
