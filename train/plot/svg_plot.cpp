#include "train/plot/svg_plot.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/ledger.h"
#include "kernels/base/text.h"
#include "train/plot/svg_axis.h"
#include "train/plot/svg_text.h"

namespace tessera {
namespace {

// All lengths are SVG user units, pixels at the natural size.
constexpr double kWidth = 840, kPanelHeight = 260, kWidePanelHeight = 310;
constexpr double kPlotRight = 24, kPlotTop = 34, kPlotBottom = 44;  // margins inside a panel
constexpr double kPlotLeft = 56, kLeftOfBytes = 84;                 // room for the ticks of y
constexpr double kLeftUnnamed = 72;                                 // the same, without a name of the axis
constexpr double kHead = 62;                                        // above the panels: title and legend
constexpr double kLabels = 126;                                     // the column of lines' labels
constexpr double kTextHeight = 15, kTickWidth = 34;                 // the least between two texts
constexpr double kLinearTickWidth = 70;                             // of a linear scale, about

constexpr double kEndText = 100;       // the width of the text at a line's end
constexpr double kEndHeadroom = 0.18;  // of the scale of bytes, for that text above it

// Distinguishable with the common colour blindnesses, and with contrast on light and dark pages.
constexpr const char* kColours[] = {"#4477dd", "#dd6633", "#229966", "#aa55bb", "#bb9911", "#777777"};

// Stronger than the sheet's colour of texts
std::string in_colour(const char* colour) { return fmt::format(" style=\"fill:{}\"", colour); }

class PanelDrawing {
 public:
  PanelDrawing(const SvgPlot& plot, const SvgPlot::Panel& panel, const std::vector<std::string>& names)
      : plot_(plot), panel_(panel), names_(names) {}

  // "" of a panel without points. `top_y`: what y reaches at least.
  std::string draw(double left, double top, double width, double height, double top_y) {
    std::vector<double> xs, ys;
    for (const SvgPlot::Line& line : panel_.lines) {
      for (const auto& [x, y] : line.points) xs.push_back(x), ys.push_back(y);
      if (line.end) xs.push_back(line.end->x), ys.push_back(line.end->y);
    }
    for (const SvgPlot::Level& level : panel_.levels) ys.push_back(level.y);
    if (xs.empty() || (!panel_.around && !(*std::max_element(ys.begin(), ys.end()) > 0))) return "";
    ys.push_back(std::max(top_y, ys.front()));
    const auto [smallest, largest] = std::minmax_element(ys.begin(), ys.end());
    const auto labelled = [](const SvgPlot::Line& line) { return !line.label.empty(); };
    const bool labels = std::any_of(panel_.lines.begin(), panel_.lines.end(), labelled);
    const bool ends = std::any_of(panel_.lines.begin(), panel_.lines.end(),
                                  [](const SvgPlot::Line& line) { return line.end.has_value(); });
    const double headroom = ends ? std::pow(*largest / *smallest, kEndHeadroom) : 1;
    y_axis_ = in_bytes()      ? axis_of_bytes(*smallest, *largest * headroom)
              : panel_.around ? axis_around(*smallest, *largest)
                              : axis_from_zero(*largest);
    const auto [first, last] = std::minmax_element(xs.begin(), xs.end());
    // A little more shows the origin
    const double from = *first < *last / 20 ? std::min(0.0, *first) : *first;
    const int x_ticks = static_cast<int>(width / kLinearTickWidth);
    x_axis_ = plot_.x_axis == SvgPlot::XAxis::kLinear ? axis_between(from, *last, x_ticks) : axis_at(xs);
    left_ = left + (in_bytes() ? kLeftOfBytes : plot_.y_label.empty() ? kLeftUnnamed : kPlotLeft);
    right_ = left + width - kPlotRight - (labels ? kLabels : 0);
    top_ = top + kPlotTop;
    bottom_ = top + height - kPlotBottom;
    std::string svg = draw_axes(left);
    for (const SvgPlot::Level& level : panel_.levels) {
      svg += fmt::format("<path class=\"v\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", left_, y_of(level.y), right_);
      const bool below = y_of(level.y) - top_ < kTextHeight;  // the panel's title is above
      svg += svg_text(left_ + 6, y_of(level.y) + (below ? kTextHeight : -5), "start", level.text);
    }
    for (size_t i = 0; i < panel_.lines.size(); ++i) svg += draw_line(i);
    return labels ? svg + draw_labels() : svg;
  }

 private:
  bool in_bytes() const { return plot_.y_axis == SvgPlot::YAxis::kBytes; }
  double x_of(double x) const { return left_ + x_axis_.share(x) * (right_ - left_); }
  double y_of(double y) const { return bottom_ - y_axis_.share(y) * (bottom_ - top_); }
  const char* colour_of(const SvgPlot::Line& line) const {
    const auto index = std::find(names_.begin(), names_.end(), line.name) - names_.begin();
    return kColours[static_cast<size_t>(index) % std::size(kColours)];
  }

  std::string draw_axes(double left) const {
    std::string svg = svg_text((left_ + right_) / 2, top_ - 12, "middle", panel_.title, " class=\"t\"");
    for (const PlotAxis::Tick& tick : y_axis_.ticks) {
      svg +=
          fmt::format("<path class=\"g\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", left_, y_of(tick.value), right_);
      svg += svg_text(left_ - 8, y_of(tick.value) + 4, "end", tick.text);
    }
    double last = left_ - kTickWidth;
    for (const PlotAxis::Tick& tick : x_axis_.ticks) {
      if (x_of(tick.value) - last < kTickWidth) continue;
      last = x_of(tick.value);
      svg += svg_text(last, bottom_ + 17, "middle", tick.text);
    }
    svg += svg_text((left_ + right_) / 2, bottom_ + 35, "middle", plot_.x_label);
    if (plot_.y_label.empty()) return svg;
    const double middle = (top_ + bottom_) / 2;
    return svg + svg_text(left + 14, middle, "middle", plot_.y_label,
                          fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", left + 14, middle));
  }

  // Whether an earlier line hides behind this one.
  bool covers_another(size_t index) const {
    const SvgPlot::Points& points = panel_.lines[index].points;
    return std::any_of(
        panel_.lines.begin(), panel_.lines.begin() + static_cast<std::ptrdiff_t>(index),
        [&](const SvgPlot::Line& earlier) {
          return !points.empty() && std::all_of(points.begin(), points.end(), [&](const auto& p) {
            return std::find(earlier.points.begin(), earlier.points.end(), p) != earlier.points.end();
          });
        });
  }

  std::string draw_line(size_t index) const {
    const SvgPlot::Line& line = panel_.lines[index];
    const char* colour = colour_of(line);
    SvgPlot::Points points = line.points;
    std::sort(points.begin(), points.end());
    std::string svg, path;
    for (const auto& [x, y] : points)
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_of(x), y_of(y));
    const std::string opacity = line.opacity < 1 ? fmt::format(" stroke-opacity=\"{}\"", line.opacity) : "";
    if (!path.empty())
      svg += fmt::format("<path fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{}{} d=\"{}\"/>\n", colour,
                         line.width, opacity,
                         line.dashed             ? " stroke-dasharray=\"5 4\""
                         : covers_another(index) ? " stroke-dasharray=\"7 7\""
                                                 : "",
                         path);
    if (line.end) svg += draw_end(*line.end, points, colour);
    if (!line.dots) return svg;
    for (const auto& [x, y] : points) {
      svg += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}, {}: {}</title></circle>\n",
          x_of(x), y_of(y), colour, svg_escaped(line.name),
          plot_.x_axis == SvgPlot::XAxis::kLinear ? format_count(x) : short_number(x),
          in_bytes() ? format_bytes(std::llround(y)) : fmt::format("{:.4g}", y));
    }
    return svg;
  }

  std::string draw_end(const SvgPlot::End& end, const SvgPlot::Points& points, const char* colour) const {
    const double x = x_of(end.x), y = y_of(end.y);
    std::string svg;
    if (!points.empty())
      svg += fmt::format(
          "<path fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"2 4\" "
          "d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>\n",
          colour, x_of(points.back().first), y_of(points.back().second), x, y);
    svg += fmt::format("<path stroke=\"{}\" stroke-width=\"3\" d=\"M{:.1f} {:.1f}l12 12m0 -12l-12 12\"/>\n",
                       colour, x - 6, y - 6);
    // Above the mark and to its left: lines rise.
    const bool room = x - left_ > kEndText;
    const std::vector<std::string>& lines = end.text;
    for (size_t i = 0; i < lines.size(); ++i)
      svg += svg_text(x + (room ? 6 : -6), y - 11 - kTextHeight * static_cast<double>(lines.size() - 1 - i),
                      room ? "end" : "start", lines[i], in_colour(colour));
    return svg;
  }

  // In a column, each as high as its line ends, but clear of each other.
  std::string draw_labels() const {
    std::vector<std::pair<double, const SvgPlot::Line*>> labels;
    for (const SvgPlot::Line& line : panel_.lines) {
      if (line.label.empty()) continue;
      double y = line.end ? line.end->y : 0;
      for (const auto& [x, value] : line.points) y = std::max(y, value);
      labels.push_back({y_of(y) + 4, &line});
    }
    std::stable_sort(labels.begin(), labels.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 1; i < labels.size(); ++i)
      labels[i].first = std::max(labels[i].first, labels[i - 1].first + kTextHeight);
    std::string svg;
    for (const auto& [y, line] : labels)
      svg += svg_text(right_ + 12, y, "start", line->label, in_colour(colour_of(*line)));
    return svg;
  }

  const SvgPlot& plot_;
  const SvgPlot::Panel& panel_;
  const std::vector<std::string>& names_;
  PlotAxis x_axis_{}, y_axis_{};
  double left_ = 0, right_ = 0, top_ = 0, bottom_ = 0;  // of the field between the axes
};

}  // namespace

SvgPlot::Line& SvgPlot::line(const std::string& panel, const std::string& name) {
  const auto named = [](auto& list, const std::string& name, auto field) {
    return std::find_if(list.begin(), list.end(), [&](const auto& item) { return item.*field == name; });
  };
  auto found = named(panels, panel, &Panel::title);
  if (found == panels.end()) found = panels.insert(panels.end(), Panel{.title = panel, .lines = {}});
  auto line = named(found->lines, name, &Line::name);
  if (line == found->lines.end())
    line = found->lines.insert(found->lines.end(), Line{.name = name, .points = {}});
  return *line;
}

std::string SvgPlot::draw() const {
  std::vector<std::string> names;  // in the order of their first use, which is that of their colours
  for (const Panel& panel : panels) {
    for (const Line& line : panel.lines)
      if (std::find(names.begin(), names.end(), line.name) == names.end()) names.push_back(line.name);
  }
  struct Place {
    double left, top, width, height;
  };
  std::vector<Place> places;
  double height = kHead;
  for (int column = 0; const Panel& panel : panels) {
    const bool alone = panel.wide || columns == 1;
    if (alone) column = 0;
    const double panel_width = alone ? kWidth : kWidth / columns,
                 high = alone ? kWidePanelHeight : kPanelHeight;
    if (column == 0) height += high;
    places.push_back(
        {.left = column * panel_width, .top = height - high, .width = panel_width, .height = high});
    column = alone ? 0 : (column + 1) % columns;
  }
  std::string svg = svg_head(title, kWidth, height);
  const double legend_step = std::min(140.0, kWidth / static_cast<double>(std::max<size_t>(1, names.size())));
  double x = kWidth / 2 - legend_step * static_cast<double>(names.size()) / 2;
  for (size_t i = 0; i < names.size(); ++i, x += legend_step) {
    svg += fmt::format("<path stroke=\"{}\" stroke-width=\"3\" d=\"M{:.1f} 44h18\"/>\n",
                       kColours[i % std::size(kColours)], x);
    svg += svg_text(x + 24, 48, "start", names[i]);
  }
  double top_y = -std::numeric_limits<double>::infinity();
  for (const Panel& panel : panels) {
    if (!one_scale) break;
    for (const Level& level : panel.levels) top_y = std::max(top_y, level.y);
    for (const Line& line : panel.lines)
      for (const auto& [x, y] : line.points) top_y = std::max(top_y, y);
  }
  for (size_t i = 0; i < panels.size(); ++i) {
    const Place& at = places[i];
    svg += PanelDrawing(*this, panels[i], names).draw(at.left, at.top, at.width, at.height, top_y);
  }
  return svg + "</svg>\n";
}

}  // namespace tessera
