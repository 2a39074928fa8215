#include "train/bench/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "train/bench/op_names.h"

namespace tessera {
namespace {

constexpr size_t kColumns = 8;
using Line = std::array<std::string, kColumns>;
const Line kColumnNames = {"operation", "shape", "calls", "ms", "GB", "TFLOP", "bound ms", "share"};

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }

Line line_of(const RooflineRow& row, double bound_ms) {
  return {row.operation,
          row.shape,
          row.calls > 0 ? fmt::format("{}", row.calls) : "",
          fmt::format("{:.3f}", row.ms),
          fmt::format("{:.3f}", row.bytes / 1e9),
          row.flops > 0 ? fmt::format("{:.3f}", row.flops / 1e12) : "",
          fmt::format("{:.3f}", bound_ms),
          row.ms > 0 ? percent(bound_ms / row.ms) : ""};
}

// The rows, their sum, the gap, and the step
std::vector<Line> lines_of(const Roofline& r) {
  std::vector<Line> lines;
  for (const RooflineRow& row : r.rows) lines.push_back(line_of(row, r.bound_ms(row)));
  lines.push_back(line_of(r.sum(), r.sum_of_bounds()));
  lines.push_back({"gap: launches, the host", "", "", fmt::format("{:.3f}", r.gap_ms())});
  lines.push_back({"step", "", "", fmt::format("{:.3f}", r.step_ms), "", "",
                   fmt::format("{:.3f}", r.sum_of_bounds()), percent(r.sum_of_bounds() / r.step_ms)});
  return lines;
}

std::string text_of_windows(const Roofline& r) {
  const double cost = r.cost_of_windows();
  if (cost == 0) return "";
  return fmt::format(
      "windows: a step takes {:.3f} times what it would if a pair within a window cost what it does in other "
      "blocks\n",
      cost);
}

std::string rates_of(const Roofline& r) {
  const std::string fp8 =
      r.fp8_flop_per_second > 0 ? fmt::format(" ({:.2f} in FP8)", r.fp8_flop_per_second / 1e12) : "";
  return fmt::format("{:.1f} GB/s of a copy, {:.2f} TFLOP/s{} of the GEMM peak, both measured in this run",
                     r.bytes_per_second / 1e9, r.flop_per_second / 1e12, fp8);
}

}  // namespace

double Roofline::bound_ms(const RooflineRow& row) const {
  const double fp8 = row.fp8_flops > 0 ? row.fp8_flops / fp8_flop_per_second : 0;
  return 1e3 * std::max(row.bytes / bytes_per_second, (row.flops - row.fp8_flops) / flop_per_second + fp8);
}

RooflineRow Roofline::sum() const {
  RooflineRow all{.operation = "sum", .shape = ""};
  for (const RooflineRow& row : rows) {
    all.calls += row.calls;
    all.ms += row.ms, all.bytes += row.bytes, all.flops += row.flops, all.fp8_flops += row.fp8_flops;
  }
  return all;
}

double Roofline::sum_of_bounds() const {
  double sum = 0;
  for (const RooflineRow& row : rows) sum += bound_ms(row);
  return sum;
}

double Roofline::gap_ms() const { return step_ms - sum().ms; }

double Roofline::cost_of_windows() const {
  double dearer_ms = 0;
  bool has_both = false;
  for (const RooflineRow& row : rows) {
    const size_t mark = row.shape.find(kWindowInShape);
    const auto full = std::ranges::find_if(rows, [&](const RooflineRow& other) {
      return mark != row.shape.npos && other.operation == row.operation && other.flops > 0 &&
             other.shape == row.shape.substr(0, mark);
    });
    if (full == rows.end()) continue;
    has_both = true;
    dearer_ms += row.ms - row.flops * full->ms / full->flops;
  }
  return has_both ? step_ms / (step_ms - dearer_ms) : 0;
}

void sort_by_time(Roofline& roofline) {
  std::ranges::stable_sort(roofline.rows, std::ranges::greater(), &RooflineRow::ms);
}

std::string table_of(const Roofline& r) {
  std::vector<Line> lines = lines_of(r);
  lines.insert(lines.begin(), kColumnNames);
  std::array<size_t, kColumns> width{};
  for (const Line& line : lines)
    for (size_t c = 0; c < kColumns; ++c) width[c] = std::max(width[c], line[c].size());
  std::string text = fmt::format("  roofline: {}\n", rates_of(r));
  for (const Line& line : lines) {
    text += fmt::format("    {:<{}}  {:<{}}", line[0], width[0], line[1], width[1]);
    for (size_t c = 2; c < kColumns; ++c) text += fmt::format("  {:>{}}", line[c], width[c]);
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  const std::string windows = text_of_windows(r);
  return windows.empty() ? text : text + "    " + windows;
}

std::string to_markdown(const Roofline& r) {
  std::string text = fmt::format("{}, on {}.\n{}.\n\n", r.what, r.device, rates_of(r));
  text += "| Operation | Shape | Calls | ms | GB | TFLOP | Bound, ms | Share |\n";
  text += "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n";
  for (const Line& line : lines_of(r)) text += fmt::format("| {} |\n", fmt::join(line, " | "));
  const std::string windows = text_of_windows(r);
  return windows.empty() ? text : text + "\n" + windows;
}

nlohmann::ordered_json to_json(const Roofline& r) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const RooflineRow& row : r.rows)
    rows.push_back({{"operation", row.operation},
                    {"shape", row.shape},
                    {"calls", row.calls},
                    {"ms", row.ms},
                    {"bytes", row.bytes},
                    {"flops", row.flops},
                    {"fp8_flops", row.fp8_flops},
                    {"bound_ms", r.bound_ms(row)},
                    {"share", r.bound_ms(row) / row.ms}});
  return {{"bytes_per_second", r.bytes_per_second},
          {"flop_per_second", r.flop_per_second},
          {"fp8_flop_per_second", r.fp8_flop_per_second},
          {"rows", rows},
          {"sum_ms", r.sum().ms},
          {"bound_ms", r.sum_of_bounds()},
          {"gap_ms", r.gap_ms()},
          {"cost_of_windows", r.cost_of_windows()}};
}

}  // namespace tessera
