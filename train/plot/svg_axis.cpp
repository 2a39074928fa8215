#include "train/plot/svg_axis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "kernels/base/text.h"

namespace tessera {
namespace {

// 1, 2 or 5 times a power of ten, so that about this many steps cover `range`
double round_step(double range, int ticks = 5) {
  const double rough = range / ticks, power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= rough) return factor * power;
  return 10 * power;
}

// 0.5, 250, 20,000
std::string tick_text(double value) {
  return std::abs(value) < 1e4 ? fmt::format("{:.6g}", value) : format_count(value);
}

constexpr int kMostTicks = 20;  // whatever the step

// Multiples of the step. Counted in whole steps: a sum of steps would drift.
void add_ticks(PlotAxis& axis, double step) {
  const double first = std::ceil(axis.from / step - 1e-6);
  for (int i = 0; i < kMostTicks && (first + i) * step <= axis.to + 1e-6 * step; ++i) {
    const double tick = (first + i) * step + 0.0;  // -0 becomes 0
    axis.ticks.push_back({tick, tick_text(tick)});
  }
}

std::string power_of_two_bytes(int power) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  return fmt::format("{} {}", 1 << power % 10, kUnits[power / 10]);
}

}  // namespace

double PlotAxis::share(double value) const {
  const auto place = [&](double v) { return logarithmic ? std::log2(v) : v; };
  return to > from ? (place(value) - place(from)) / (place(to) - place(from)) : 0.5;
}

PlotAxis axis_from_zero(double largest) { return axis_around(0, largest); }

PlotAxis axis_around(double smallest, double largest) {
  constexpr double kLeastShare = 1e-9;  // of a value that a scale can tell apart
  if (!(largest - smallest > kLeastShare * std::abs(smallest)))
    largest = smallest + std::max(1e-12, std::abs(smallest));
  const double step = round_step(largest - smallest);
  PlotAxis axis{.from = step * std::floor(smallest / step),
                .to = step * std::ceil(largest / step),
                .logarithmic = false,
                .ticks = {}};
  add_ticks(axis, step);
  return axis;
}

PlotAxis axis_between(double smallest, double largest, int ticks) {
  PlotAxis axis{
      .from = smallest, .to = largest > smallest ? largest : smallest + 1, .logarithmic = false, .ticks = {}};
  add_ticks(axis, round_step(axis.to - axis.from, ticks));
  return axis;
}

PlotAxis axis_at(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  PlotAxis axis{.from = values.front(), .to = values.back(), .logarithmic = true, .ticks = {}};
  for (const double x : values) axis.ticks.push_back({x, short_number(x)});
  return axis;
}

PlotAxis axis_of_bytes(double smallest, double largest) {
  constexpr int kMostSteps = 7;
  const int low = std::max(0, static_cast<int>(std::floor(std::log2(smallest))));
  const int high = std::max(low + 1, static_cast<int>(std::ceil(std::log2(largest))));
  int step = 1;
  while (high - low > kMostSteps * step) step = step == 1 ? 2 : step == 2 ? 5 : step + 5;
  const int first = low / step * step, last = (high + step - 1) / step * step;
  PlotAxis axis{.from = std::exp2(first), .to = std::exp2(last), .logarithmic = true, .ticks = {}};
  for (int power = first; power <= last; power += step)
    axis.ticks.push_back({std::exp2(power), power_of_two_bytes(power)});
  return axis;
}

std::string short_number(double value) {
  constexpr double kKi = 1024, kMi = 1024 * kKi;
  if (value >= kMi && std::fmod(value, kMi) == 0) return fmt::format("{:.0f}M", value / kMi);
  return value >= kKi && std::fmod(value, kKi) == 0 ? fmt::format("{:.0f}K", value / kKi)
                                                    : fmt::format("{:.8g}", value);
}

}  // namespace tessera
