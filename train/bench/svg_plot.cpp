#include "train/bench/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

// All lengths are SVG user units, pixels at the natural size.
constexpr double kPanelWidth = 420, kPanelHeight = 260, kColumns = 2;
constexpr double kLeft = 56, kRight = 24, kTop = 34, kBottom = 44;  // margins inside a panel
constexpr double kHead = 62;                                        // above the panels: title and legend

// Told apart by people with the common colour blindnesses, and dark or light enough for either page.
constexpr const char* kColours[] = {"#4477dd", "#dd6633", "#229966", "#aa55bb", "#bb9911", "#777777"};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else {
      result += c;
    }
  }
  return result;
}

std::string text(double x, double y, const char* anchor, const std::string& what, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped(what));
}

// 1, 2 or 5 times a power of ten: some five of them make up `largest`.
double round_step(double largest) {
  const double rough = largest / 5, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

// 512 is 512, 2048 is 2K.
std::string short_number(double value) {
  return value >= 1024 && std::fmod(value, 1024) == 0 ? fmt::format("{:.0f}K", value / 1024)
                                                      : fmt::format("{:.6g}", value);
}

struct Scale {
  double from, to;    // values
  double start, end;  // places
  double at(double value) const {
    return to > from ? start + (value - from) / (to - from) * (end - start) : (start + end) / 2;
  }
};

std::string draw_panel(const SvgPlot::Panel& panel, const std::vector<std::string>& names, double left,
                       double top, const SvgPlot& plot) {
  std::vector<double> xs;
  double largest = 0;
  for (const SvgPlot::Line& line : panel.lines) {
    for (const auto& [x, y] : line.points) xs.push_back(x), largest = std::max(largest, y);
  }
  std::sort(xs.begin(), xs.end());
  xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
  if (xs.empty() || !(largest > 0)) return "";
  const double step = round_step(largest), highest = step * std::ceil(largest / step);
  const double right = left + kPanelWidth - kRight, bottom = top + kPanelHeight - kBottom;
  const Scale x_scale{std::log2(xs.front()), std::log2(xs.back()), left + kLeft, right};
  const Scale y_scale{0, highest, bottom, top + kTop};

  std::string svg = text((left + kLeft + right) / 2, top + kTop - 12, "middle", panel.title, " class=\"t\"");
  for (double y = 0; y <= highest * 1.001; y += step) {
    svg +=
        fmt::format("<path class=\"g\" d=\"M{:.1f} {:.1f}H{:.1f}\"/>\n", left + kLeft, y_scale.at(y), right);
    svg += text(left + kLeft - 8, y_scale.at(y) + 4, "end", fmt::format("{:.6g}", y));
  }
  for (const double x : xs) svg += text(x_scale.at(std::log2(x)), bottom + 17, "middle", short_number(x));
  svg += text((left + kLeft + right) / 2, bottom + 35, "middle", plot.x_label);
  const double middle = (top + kTop + bottom) / 2;
  svg += text(left + 14, middle, "middle", plot.y_label,
              fmt::format(" transform=\"rotate(-90 {:.1f} {:.1f})\"", left + 14, middle).c_str());
  for (const SvgPlot::Line& line : panel.lines) {
    const auto index = std::find(names.begin(), names.end(), line.name) - names.begin();
    const char* colour = kColours[static_cast<size_t>(index) % std::size(kColours)];
    SvgPlot::Points points = line.points;
    std::sort(points.begin(), points.end());
    std::string path;
    for (const auto& [x, y] : points) {
      path +=
          fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_scale.at(std::log2(x)), y_scale.at(y));
    }
    svg += fmt::format("<path fill=\"none\" stroke=\"{}\" stroke-width=\"2\" d=\"{}\"/>\n", colour, path);
    for (const auto& [x, y] : points) {
      svg += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}, {}: {:.4g}</title></circle>\n",
          x_scale.at(std::log2(x)), y_scale.at(y), colour, escaped(line.name), short_number(x), y);
    }
  }
  return svg;
}

}  // namespace

SvgPlot::Points& SvgPlot::line(const std::string& panel, const std::string& name) {
  const auto named = [](auto& list, const std::string& wanted, auto field) {
    return std::find_if(list.begin(), list.end(), [&](const auto& item) { return item.*field == wanted; });
  };
  auto found = named(panels, panel, &Panel::title);
  if (found == panels.end()) found = panels.insert(panels.end(), Panel{panel, {}});
  auto line = named(found->lines, name, &Line::name);
  if (line == found->lines.end()) line = found->lines.insert(found->lines.end(), Line{name, {}});
  return line->points;
}

std::string SvgPlot::draw() const {
  std::vector<std::string> names;  // in the order of their first use, which is that of their colours
  for (const Panel& panel : panels) {
    for (const Line& line : panel.lines)
      if (std::find(names.begin(), names.end(), line.name) == names.end()) names.push_back(line.name);
  }
  const double rows = std::ceil(static_cast<double>(panels.size()) / kColumns);
  const double width = kColumns * kPanelWidth, height = kHead + rows * kPanelHeight;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<title>{2}</title>\n"
      "<style>text{{fill:#333}}.t{{font-weight:bold}}.g{{stroke:#888;stroke-opacity:.3;fill:none}}.b{{fill:#"
      "fff}}\n"
      "@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.b{{fill:#0d1117}}}}</style>\n"
      "<rect class=\"b\" width=\"100%\" height=\"100%\"/>\n",
      width, height, escaped(title));
  svg += text(width / 2, 22, "middle", title, " class=\"t\" font-size=\"15\"");
  const double legend_step = std::min(140.0, width / static_cast<double>(std::max<size_t>(1, names.size())));
  double x = width / 2 - legend_step * static_cast<double>(names.size()) / 2;
  for (size_t i = 0; i < names.size(); ++i, x += legend_step) {
    svg += fmt::format("<path stroke=\"{}\" stroke-width=\"3\" d=\"M{:.1f} 44h18\"/>\n",
                       kColours[i % std::size(kColours)], x);
    svg += text(x + 24, 48, "start", names[i]);
  }
  for (size_t i = 0; i < panels.size(); ++i) {
    const double column = static_cast<double>(i % static_cast<size_t>(kColumns)),
                 row = static_cast<double>(i / static_cast<size_t>(kColumns));
    svg += draw_panel(panels[i], names, column * kPanelWidth, kHead + row * kPanelHeight, *this);
  }
  return svg + "</svg>\n";
}

}  // namespace tessera
