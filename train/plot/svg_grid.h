// A grid of shares between 0 and 1 as an SVG file: the fuller a cell's colour, the larger its share.
// Colours follow the reader's preference for light or dark pages. It needs no script, font or network.
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
