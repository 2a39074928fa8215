#include "train/plot/svg_grid.h"

#include <fmt/core.h>

#include <algorithm>

#include "train/plot/svg_text.h"

namespace tessera {
namespace {

// Pixels at the natural size
constexpr double kCellWidth = 84, kCellHeight = 28, kLeft = 84, kTop = 44, kBottom = 52, kRight = 24;
constexpr double kLeastWidth = 420;                          // the title's
constexpr const char* kColour = "#4477dd";                   // seen with the common colour blindnesses
constexpr double kLeastOpacity = 0.04, kMostOpacity = 0.75;  // the text stays readable

}  // namespace

std::string SvgGrid::draw() const {
  const double grid = kCellWidth * static_cast<double>(columns.size());
  const double width = std::max(kLeft + grid + kRight, kLeastWidth);
  const double bottom = kTop + kCellHeight * static_cast<double>(rows.size());
  const auto x_of = [](size_t column) { return kLeft + kCellWidth * static_cast<double>(column); };
  const auto y_of = [](size_t row) { return kTop + kCellHeight * static_cast<double>(row); };
  std::string svg = svg_head(title, width, bottom + kBottom);
  for (size_t r = 0; r < rows.size(); ++r) {
    svg += svg_text(kLeft - 8, y_of(r) + kCellHeight / 2 + 4, "end", rows[r]);
    for (size_t c = 0; c < columns.size(); ++c) {
      const Cell& cell = cells[r * columns.size() + c];
      svg += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\" "
          "fill-opacity=\"{:.2f}\"/>\n",
          x_of(c) + 1, y_of(r) + 1, kCellWidth - 2, kCellHeight - 2, kColour,
          kLeastOpacity + (kMostOpacity - kLeastOpacity) * cell.share);
      svg += svg_text(x_of(c) + kCellWidth / 2, y_of(r) + kCellHeight / 2 + 4, "middle", cell.text);
    }
  }
  for (size_t c = 0; c < columns.size(); ++c)
    svg += svg_text(x_of(c) + kCellWidth / 2, bottom + 17, "middle", columns[c]);
  const double middle = (kTop + bottom) / 2;
  svg += svg_text(kLeft + grid / 2, bottom + 37, "middle", x_label);
  svg += svg_text(18, middle, "middle", y_label, fmt::format(" transform=\"rotate(-90 18 {:.1f})\"", middle));
  return svg + "</svg>\n";
}

}  // namespace tessera
