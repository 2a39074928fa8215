// Line plots as an SVG file: panels side by side in two columns, x on a scale of powers of two, y from zero.
// Readable on light and on dark pages: colours follow the reader's preference.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct SvgPlot {
  using Points = std::vector<std::pair<double, double>>;  // x, y
  struct Line {
    std::string name;
    Points points;
  };
  struct Panel {
    std::string title;
    std::vector<Line> lines;
  };
  std::string title, x_label, y_label;
  std::vector<Panel> panels;  // lines of the same name have the same colour in all

  // The points of a line, made if it is not there yet.
  Points& line(const std::string& panel, const std::string& name);
  std::string draw() const;
};

}  // namespace tessera
