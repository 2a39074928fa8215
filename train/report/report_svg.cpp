#include "train/report/report_svg.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "kernels/base/text.h"
#include "train/plot/svg_plot.h"

namespace tessera {
namespace {

using Points = SvgPlot::Points;

size_t curve_named(std::string_view key) {
  return static_cast<size_t>(std::find(RunRecord::kStepCurves.begin(), RunRecord::kStepCurves.end(), key) -
                             RunRecord::kStepCurves.begin());
}

// Every step; for a bucket of several steps, its least and its greatest value
Points extremes(const ThinnedCurves& curves, size_t curve) {
  Points points;
  for (const auto& [index, bucket] : curves.buckets()) {
    const ThinnedCurves::Value& value = bucket.values[curve];
    const auto step = static_cast<double>(bucket.last.step);
    if (value.count > 0) points.push_back({step, value.least});
    if (value.count > 0 && value.greatest > value.least) points.push_back({step, value.greatest});
  }
  return points;
}

// Sums over the points around one: of w, w d, w d^2, w y and w d y, where w is the weight and d the distance
struct Sums {
  double w = 0, wd = 0, wdd = 0, wy = 0, wdy = 0;

  void move(double distance, double keep) {  // to the next point
    wdd = keep * (wdd + 2 * distance * wd + distance * distance * w);
    wd = keep * (wd + distance * w);
    wdy = keep * (wdy + distance * wy);
    w *= keep;
    wy *= keep;
  }
  void add(const Sums& other) {
    w += other.w, wd += other.wd, wdd += other.wdd, wy += other.wy, wdy += other.wdy;
  }
};

// At each step, the value of a straight line fitted to the neighbouring steps with weights
// exp(-distance / span). As in report_charts.js.
Points smoothed(const ThinnedCurves& curves, size_t curve, double span) {
  Points points;
  for (const auto& [index, bucket] : curves.buckets())
    if (const ThinnedCurves::Value& value = bucket.values[curve]; value.count > 0)
      points.push_back({static_cast<double>(bucket.last.step), value.mean()});
  std::vector<Sums> around(points.size());
  for (const int way : {-1, 1}) {
    Sums sums;
    for (size_t k = 0; k < points.size(); ++k) {
      const size_t i = way < 0 ? k : points.size() - 1 - k, before = way < 0 ? i - 1 : i + 1;
      const double gap = k == 0 ? 0 : std::abs(points[i].first - points[before].first);
      sums.move(way * gap, std::exp(-gap / span));
      around[i].add(sums);
      sums.add({.w = 1, .wy = points[i].second});
    }
  }
  for (size_t i = 0; i < points.size(); ++i) {
    around[i].add({.w = 1, .wy = points[i].second});
    const auto& [w, wd, wdd, wy, wdy] = around[i];
    const double det = w * wdd - wd * wd;
    points[i].second = det > 1e-9 * w * w * span * span ? (wdd * wy - wd * wdy) / det : wy / w;
  }
  return points;
}

constexpr double kSmoothedShare = 60;  // the length of the run over the span of the smoothing

// A curve of all that `curves` has of a run
struct DrawnCurve {
  const RunRecord& run;
  const ThinnedCurves& curves;
  size_t number;
};
void add_curve(SvgPlot::Panel& panel, const std::string& name, const DrawnCurve& drawn, bool smooth) {
  const auto& [run, curves, curve] = drawn;
  Points raw = extremes(curves, curve);
  if (raw.empty()) return;
  const auto line = [&](Points points, double width, double opacity) {
    panel.lines.push_back(
        {.name = name, .points = std::move(points), .dots = false, .width = width, .opacity = opacity});
  };
  line(std::move(raw), smooth ? 1 : 1.6, smooth ? 0.35 : 1);
  const double span = static_cast<double>(run.last().step) / kSmoothedShare;
  if (smooth) line(smoothed(curves, curve, std::max(1.0, span)), 2, 1);
}
void add_curve(SvgPlot::Panel& panel, const std::string& name, const RunRecord& run, const char* key,
               bool smooth) {
  add_curve(panel, name, {run, run.steps(), curve_named(key)}, smooth);
}

Points validation_losses(const RunRecord& run) {
  Points points;
  for (const auto& [index, bucket] : run.evaluations().buckets())
    if (bucket.values[0].count > 0)
      points.push_back({static_cast<double>(bucket.last.step), bucket.values[0].mean()});
  return points;
}

constexpr size_t kMostDots = 60;  // of a line with more evaluations they would touch

}  // namespace

std::string report_svg(std::span<const RunRecord> runs) {
  const bool single = runs.size() == 1;
  SvgPlot plot{.title = single ? runs[0].name : fmt::format("{} runs", runs.size()),
               .x_label = "step",
               .y_label = "",
               .panels = {},
               .x_axis = SvgPlot::XAxis::kLinear};
  SvgPlot::Panel losses{.title = single ? "Loss" : "Loss: training, and dashed validation", .lines = {}};
  losses.wide = losses.around = true;
  for (const RunRecord& run : runs) {
    add_curve(losses, single ? "training" : run.name, run, "loss", true);
    Points validation = validation_losses(run);
    if (validation.empty()) continue;
    const bool dots = validation.size() <= kMostDots;
    losses.lines.push_back({.name = single ? "validation" : run.name,
                            .points = std::move(validation),
                            .dots = dots,
                            .width = 1.6,
                            .dashed = !single});
  }
  plot.panels.push_back(std::move(losses));
  const auto panel = [&](const char* title, const char* key, bool smooth) {
    SvgPlot::Panel made{.title = title, .lines = {}};
    for (const RunRecord& run : runs) add_curve(made, single ? "training" : run.name, run, key, smooth);
    plot.panels.push_back(std::move(made));
  };
  panel("Learning rate", "learning_rate", false);
  panel("Gradient norm", "grad_norm", true);
  panel("Tokens per second", "tokens_per_second", true);
  panel("MFU: share of the GEMM peak", "mfu", true);
  constexpr std::array kTitles = {"Reward accuracy", "Reward margin"};
  for (size_t i = 0; i < kTitles.size(); ++i) {
    SvgPlot::Panel made{.title = kTitles[i], .lines = {}};
    for (const RunRecord& run : runs)
      if (run.pairs()) add_curve(made, single ? "training" : run.name, {run, *run.pairs(), i}, true);
    if (!made.lines.empty()) plot.panels.push_back(std::move(made));
  }
  return plot.draw();
}

std::string validation_svg(std::span<const RunRecord> runs) {
  constexpr double kMost = 1.3;  // times the lowest loss
  double lowest = std::numeric_limits<double>::infinity();
  for (const RunRecord& run : runs)
    if (run.best_validation()) lowest = std::min(lowest, present(run.best_validation()).value);
  check(std::isfinite(lowest), "there is no validation loss to draw: these runs did not evaluate");
  SvgPlot::Panel panel{.title = "", .lines = {}};
  panel.wide = panel.around = true;
  for (const RunRecord& run : runs) {
    Points points = validation_losses(run);
    const bool dots = points.size() <= kMostDots;
    std::erase_if(points, [&](const auto& point) { return point.second > kMost * lowest; });
    if (!points.empty()) panel.lines.push_back({.name = run.name, .points = std::move(points), .dots = dots});
  }
  return SvgPlot{.title = "Validation loss",
                 .x_label = "step",
                 .y_label = "",
                 .panels = {std::move(panel)},
                 .x_axis = SvgPlot::XAxis::kLinear}
      .draw();
}

std::string position_svg(std::span<const RunRecord> runs) {
  SvgPlot::Panel panel{.title = "", .lines = {}};
  panel.wide = panel.around = true;
  for (const RunRecord& run : runs) {
    for (const RunRecord::Positions& one : run.positions()) {
      SvgPlot::Line line{.name = fmt::format("{}step {}", runs.size() == 1 ? "" : run.name + ", ",
                                             format_count(static_cast<double>(one.step))),
                         .points = {},
                         .dashed = &one != &run.positions().back()};
      for (size_t i = 0; i < one.ends.size(); ++i)
        if (std::isfinite(one.losses[i])) line.points.push_back({one.ends[i], one.losses[i]});
      if (!line.points.empty()) panel.lines.push_back(std::move(line));
    }
  }
  check(!panel.lines.empty(),
        "there is no loss by position to draw: these runs had evaluation.by_position=false");
  return SvgPlot{.title = "Validation loss by position",
                 .x_label = "position in the sequence, to",
                 .y_label = "",
                 .panels = {std::move(panel)}}
      .draw();
}

}  // namespace tessera
