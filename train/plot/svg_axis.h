// Axes of a plot: their ranges and ticks.
#pragma once

#include <string>
#include <vector>

namespace tessera {

struct PlotAxis {
  struct Tick {
    double value;
    std::string text;
  };
  double from, to;  // the values at its ends
  bool logarithmic;
  std::vector<Tick> ticks;

  double share(double value) const;  // how far `value` is on the way from `from` to `to`
};

PlotAxis axis_from_zero(double largest);                  // about five ticks
PlotAxis axis_around(double smallest, double largest);    // from one tick to another, about five ticks
PlotAxis axis_at(std::vector<double> values);             // logarithmic, a tick at each value
PlotAxis axis_of_bytes(double smallest, double largest);  // logarithmic, ticks at powers of two

// Ticks from `smallest` to `largest`, about `ticks` of them
PlotAxis axis_between(double smallest, double largest, int ticks);

std::string short_number(double value);  // 512 is 512, 2048 is 2K, 1048576 is 1M

}  // namespace tessera
