// Line plots as an SVG file. Colours follow the reader's preference for light or dark pages. It needs no
// script, font or network.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

struct SvgPlot {
  using Points = std::vector<std::pair<double, double>>;  // x, y
  struct End {  // a point beyond the last one of a line: reached by dashes, and crossed out
    double x, y;
    std::vector<std::string> text;  // one entry for each line of text
  };
  struct Line {
    std::string name;
    Points points;
    std::string label = {};  // next to the line; if any line has a label, a column is left free for them
    std::optional<End> end = {};
    bool dots = true;  // draws dots at the points, with their values
    double width = 2, opacity = 1;
    bool dashed = false;
  };
  struct Level {
    double y;
    std::string text;
  };
  struct Panel {
    std::string title;
    std::vector<Line> lines;
    std::vector<Level> levels = {};  // dashed lines across the panel
    bool wide = false;               // as wide as the picture, with a row of its own
    bool around = false;             // with YAxis::kFromZero: y begins near the smallest value instead
  };
  enum class XAxis {
    kPowersOfTwo,  // a logarithmic scale, with a tick at each x
    kLinear,
  };
  enum class YAxis {
    kFromZero,
    kBytes,  // on a scale of powers of two; every y is positive
  };
  std::string title, x_label, y_label;
  std::vector<Panel> panels;  // lines of the same name have the same colour in all panels
  XAxis x_axis = XAxis::kPowersOfTwo;
  YAxis y_axis = YAxis::kFromZero;
  int columns = 2;         // of panels side by side
  bool one_scale = false;  // y has the same scale in all panels, so that they can be compared by eye

  // The line of that name; made if it does not exist yet. The reference is valid until another line is made.
  Line& line(const std::string& panel, const std::string& name);
  std::string draw() const;
};

}  // namespace tessera
