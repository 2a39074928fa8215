#include "train/report/report_svg.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "train/bench/svg_plot.h"

namespace tessera {
namespace {

using Points = SvgPlot::Points;

size_t curve_named(std::string_view key) {
  return static_cast<size_t>(std::find(RunRecord::kStepCurves.begin(), RunRecord::kStepCurves.end(), key) -
                             RunRecord::kStepCurves.begin());
}

// Every step; where several share a bucket, its least and its greatest value.
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

// A mean over the steps around, the nearer ones weighing more: exp(-distance / span). As report_charts.js.
Points smoothed(const ThinnedCurves& curves, size_t curve, double span) {
  Points means;
  for (const auto& [index, bucket] : curves.buckets())
    if (const ThinnedCurves::Value& value = bucket.values[curve]; value.count > 0)
      means.push_back({static_cast<double>(bucket.last.step), value.mean()});
  std::vector<double> weights(means.size());
  Points points = means;
  for (const bool back : {false, true}) {
    double sum = 0, weight = 0;
    for (size_t k = 0; k < means.size(); ++k) {
      const size_t i = back ? means.size() - 1 - k : k, before = back ? i + 1 : i - 1;
      const double keep = k == 0 ? 0 : std::exp(-std::abs(means[i].first - means[before].first) / span);
      sum *= keep;
      weight *= keep;
      if (back) points[i].second += sum, weights[i] += weight;
      sum += means[i].second;
      weight += 1;
      if (!back) points[i].second = sum, weights[i] = weight;
    }
  }
  for (size_t i = 0; i < points.size(); ++i) points[i].second /= weights[i];
  return points;
}

constexpr double kSmoothedShare = 60;  // the run is so many times as long as the span of the smoothing

void add_curve(SvgPlot::Panel& panel, const std::string& name, const RunRecord& run, const char* key,
               bool smooth) {
  const size_t curve = curve_named(key);
  Points raw = extremes(run.steps(), curve);
  if (raw.empty()) return;
  const auto line = [&](Points points, double width, double opacity) {
    panel.lines.push_back(
        {.name = name, .points = std::move(points), .dots = false, .width = width, .opacity = opacity});
  };
  line(std::move(raw), smooth ? 1 : 1.6, smooth ? 0.35 : 1);
  const double span = static_cast<double>(run.last().step) / kSmoothedShare;
  if (smooth) line(smoothed(run.steps(), curve, std::max(1.0, span)), 2, 1);
}

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
    Points validation;
    for (const auto& [index, bucket] : run.evaluations().buckets())
      if (bucket.values[0].count > 0)
        validation.push_back({static_cast<double>(bucket.last.step), bucket.values[0].mean()});
    if (validation.empty()) continue;
    constexpr size_t kMostDots = 60;
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
  return plot.draw();
}

}  // namespace tessera
