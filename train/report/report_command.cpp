#include "train/report/report_command.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/output.h"
#include "kernels/base/text.h"
#include "train/report/metrics.h"
#include "train/report/report_page.h"
#include "train/report/report_svg.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Runs of the same name are named by their folders, as the user wrote them.
void name_apart(std::vector<RunRecord>& runs) {
  std::multiset<std::string> names;
  for (const RunRecord& run : runs) names.insert(run.name);
  for (RunRecord& run : runs)
    if (names.count(run.name) > 1) run.name = run.folder;
}

std::string loss_text(const std::optional<RunRecord::Loss>& loss, bool with_step) {
  if (!loss) return "-";
  return fmt::format("{:.4f}", loss->value) +
         (with_step ? " at " + format_count(static_cast<double>(loss->step)) : "");
}

void print_table(const std::vector<RunRecord>& runs) {
  constexpr const char* kRow = "{:<{}}  {:>10}  {:>16}  {:>20}  {:>11}\n";
  size_t width = 3;
  for (const RunRecord& run : runs) width = std::max(width, run.name.size());
  fmt::print(fmt::runtime(kRow), "run", width, "steps", "validation loss", "best", "tokens/s");
  for (const RunRecord& run : runs) {
    const double speed = run.tokens_per_second();
    fmt::print(fmt::runtime(kRow), run.name, width, format_count(static_cast<double>(run.last().step)),
               loss_text(run.last_validation(), false), loss_text(run.best_validation(), true),
               std::isfinite(speed) ? format_count(speed) : "-");
  }
}

}  // namespace

void report_command(const ReportOptions& options) {
  check(!options.runs.empty(), "name the folder of a run, as in ./report runs/quickstart");
  std::vector<RunRecord> runs;
  for (const std::string& name : options.runs) runs.push_back(read_run(name));
  name_apart(runs);
  fs::path output = options.output;
  if (output.empty())
    output = runs.size() > 1 ? fs::path("compare.html") : fs::path(runs[0].folder) / "report.html";
  // A running run overwrites this page soon; until then it shows the present state.
  const ReportPage page{.runs = runs, .written = utc_time()};
  write_output(output.string(), report_page(page));
  std::string written = output.string();
  const auto draw = [&](const std::string& file, std::string (*svg)(std::span<const RunRecord>)) {
    if (file.empty()) return;
    write_output(file, svg(runs));
    written += ", " + file;
  };
  draw(options.svg, report_svg);
  draw(options.validation_svg, validation_svg);
  draw(options.position_svg, position_svg);
  print_table(runs);
  fmt::print("written: {}\n", written);
}

}  // namespace tessera
