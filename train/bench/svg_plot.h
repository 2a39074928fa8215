// Line plots as an SVG file, x on a scale of powers of two. Readable on light and on dark pages: colours
// follow the reader's preference. It needs no script, font or network.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct SvgPlot {
  using Points = std::vector<std::pair<double, double>>;  // x, y
  struct End {  // what lies beyond a line's last point: reached by dashes, and crossed out
    double x, y;
    std::vector<std::string> text;  // lines
  };
  struct Line {
    std::string name;
    Points points;
    std::string label = {};  // beside the line; where any line has one, a column is left free for them
    std::optional<End> end = {};
  };
  struct Level {
    double y;
    std::string text;
  };
  struct Panel {
    std::string title;
    std::vector<Line> lines;
    std::vector<Level> levels = {};  // dashed across the panel
  };
  enum class YAxis {
    kFromZero,
    kBytes,  // on a scale of powers of two; every y is positive
  };
  std::string title, x_label, y_label;
  std::vector<Panel> panels;  // lines of the same name have the same colour in all
  YAxis y_axis = YAxis::kFromZero;
  int columns = 2;  // of panels side by side

  // The line of that name, made if it is not there yet. The reference holds until another one is made.
  Line& line(const std::string& panel, const std::string& name);
  std::string draw() const;
};

}  // namespace tessera
