// A grid of shares between 0 and 1 as an SVG file: the larger the share, the fuller the cell's colour.
// Colours follow the reader's preference for light or dark pages. The file needs no script, font or network.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct SvgGrid {
  struct Cell {
    double share;
    std::string text;
  };
  std::string title, x_label, y_label;
  std::vector<std::string> columns = {}, rows = {};  // their names
  std::vector<Cell> cells = {};                      // row by row

  std::string draw() const;
};

}  // namespace tessera
