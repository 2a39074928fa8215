#include "train/bench/memory_results.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "train/memory/run_plan.h"
#include "train/plot/svg_plot.h"

namespace tessera {
namespace {

using Outcome = MemoryRow::Outcome;

constexpr const char* kRowFormat = "{:>9}  {:<9} {:>10} {:>11} {:>14} {:>10} {:>10} {:>11} {:>10}\n";

const char* name_of(Outcome outcome) {
  return outcome == Outcome::kRan          ? "ran"
         : outcome == Outcome::kDoesNotFit ? "does_not_fit"
                                           : "ran_out_of_memory";
}

double tokens_per_second(const MemoryRow& row) { return 1e3 * static_cast<double>(row.tokens) / row.step_ms; }

nlohmann::ordered_json bytes_json(const StepMemory& memory) {
  return {{"step_peak_bytes", memory.step},
          {"attention_peak_bytes", memory.attention},
          {"attention_saved_bytes", memory.saved}};
}

nlohmann::ordered_json row_json(const MemoryRow& row) {
  nlohmann::ordered_json json{{"attention", name_of(row.attention)},
                              {"tokens", row.tokens},
                              {"outcome", name_of(row.outcome)},
                              {"available_bytes", nullptr},
                              {"planned", bytes_json(row.planned)}};
  if (row.available > 0) json["available_bytes"] = row.available;
  if (row.outcome != Outcome::kRan) return json;
  const auto tokens = static_cast<double>(row.tokens);
  json["measured"] = bytes_json(row.measured);
  json["attention_saved_bytes_per_token"] = static_cast<double>(row.measured.saved) / tokens;
  json["step_peak_bytes_per_token"] = static_cast<double>(row.measured.step) / tokens;
  json["step_ms"] = row.step_ms;
  json["tokens_per_second"] = tokens_per_second(row);
  return json;
}

nlohmann::ordered_json fit_json(const std::optional<PowerFit>& fit) {
  if (!fit) return nullptr;
  return {{"exponent", fit->exponent},
          {"r_squared", fit->r_squared},
          {"doublings", fit->doublings},
          {"points", fit->points}};
}

std::string fit_text(const std::optional<PowerFit>& fit) {
  return fit ? fmt::format("N^{:.3f}  R^2 {:.5f}", fit->exponent, fit->r_squared) : "-";
}

enum class Slopes { kShown, kHidden };

// Slopes are shown where the bytes are a power of N. A step's peak is a constant plus a power: the slope of a
// straight line through it would mean nothing.
void add_panel(SvgPlot& plot, const MemoryResults& results, const char* title, int64_t StepMemory::*of,
               Slopes slopes) {
  for (const MemoryRow& row : results.rows) {
    SvgPlot::Line& line = plot.line(title, name_of(row.attention));
    const auto tokens = static_cast<double>(row.tokens);
    if (row.outcome == Outcome::kRan) {
      line.points.push_back({tokens, static_cast<double>(row.measured.*of)});
    } else if (!line.end) {
      line.end = {.x = tokens,
                  .y = static_cast<double>(row.planned.*of),
                  .text = {"out of memory", fmt::format("at N = {}", row.tokens)}};
    }
  }
  for (SvgPlot::Line& line : plot.panels.back().lines) {
    const auto fit = slopes == Slopes::kShown
                         ? fit_memory(results, parse_word<AttentionKind>("attention", line.name), of)
                         : std::nullopt;
    line.label = fit ? fmt::format("{}: slope {:.2f}", line.name, fit->exponent) : line.name;
  }
}

}  // namespace

StepMemory step_memory(const MemoryLedger& ledger, const char* saved_name) {
  const MemoryRecording* recording = ledger.recording();
  check(recording && recording->complete(), "the memory of a step is read from a ledger that recorded it");
  std::vector<std::pair<int64_t, int64_t>> changes;  // order of a birth or a death, bytes
  for (const MemoryRecording::Allocation& a : recording->allocations()) {
    if (a.tag != MemoryTag::kAttention || a.name != saved_name) continue;
    changes.push_back({a.born.order, a.bytes});
    if (a.died.order != MemoryRecording::kNone) changes.push_back({a.died.order, -a.bytes});
  }
  std::sort(changes.begin(), changes.end());
  StepMemory memory{.step = ledger.peak_bytes(),
                    .attention = ledger.peak_of_each()[static_cast<int>(MemoryTag::kAttention)]};
  int64_t alive = 0;
  for (const auto& [order, bytes] : changes) memory.saved = std::max(memory.saved, alive += bytes);
  return memory;
}

void check_as_planned(const MemoryRow& row) {
  const auto text = [](const StepMemory& m) {
    return fmt::format("{} bytes at the peak, {} of attention, {} saved by attention", m.step, m.attention,
                       m.saved);
  };
  check(row.measured == row.planned,
        "a step of {} tokens with {} attention needed other memory than planned: planned {}; measured {}. "
        "The plan is wrong: please report it, with the command line",
        row.tokens, name_of(row.attention), text(row.planned), text(row.measured));
}

std::vector<AttentionKind> MemoryResults::kinds() const {
  std::vector<AttentionKind> found;
  for (const MemoryRow& row : rows)
    if (std::find(found.begin(), found.end(), row.attention) == found.end()) found.push_back(row.attention);
  return found;
}

std::optional<PowerFit> fit_memory(const MemoryResults& results, AttentionKind kind,
                                   int64_t StepMemory::*of) {
  std::vector<std::pair<double, double>> points;
  for (const MemoryRow& row : results.rows)
    if (row.attention == kind && row.outcome == Outcome::kRan)
      points.push_back({static_cast<double>(row.tokens), static_cast<double>(row.measured.*of)});
  return fit_power(points);
}

std::string memory_table_head(const MemoryResults& r) {
  return fmt::format(
             "one sequence of N tokens through a training step: {} layers, {} heads, {} channels, {},\n"
             "recompute {}, deterministic {}, on {}; the median of {} steps\n"
             "saved: what attention keeps from the forward to the backward, all layers; its peak has scratch "
             "too\n",
             r.layers, r.heads, r.channels, r.precision, r.recompute, r.deterministic, r.device, r.steps) +
         fmt::format(kRowFormat, "tokens N", "attention", "saved", "saved/token", "attention peak",
                     "step peak", "peak/token", "step ms", "tokens/s");
}

std::string memory_table_line(const MemoryRow& row) {
  if (row.outcome != Outcome::kRan)
    return fmt::format(
        "{:>9}  {:<9} {}: needs {}, {} are available\n", row.tokens, name_of(row.attention),
        row.outcome == Outcome::kDoesNotFit ? "does not fit" : "ran out of memory, although it fits by plan",
        format_bytes(row.planned.step), format_bytes(row.available));
  const StepMemory& m = row.measured;
  return fmt::format(kRowFormat, row.tokens, name_of(row.attention), format_bytes(m.saved),
                     format_bytes(m.saved / row.tokens), format_bytes(m.attention), format_bytes(m.step),
                     format_bytes(m.step / row.tokens), fmt::format("{:.2f}", row.step_ms),
                     fmt::format("{:.0f}", tokens_per_second(row)));
}

std::string memory_summary(const MemoryResults& results) {
  std::string text =
      fmt::format("how memory grows, by least squares on log2 of N and of bytes\n  {:<9} {:<24} {}\n", "",
                  "saved by attention", "peak of the step");
  for (const AttentionKind kind : results.kinds()) {
    const auto saved = fit_memory(results, kind, &StepMemory::saved);
    text += fmt::format("  {:<9} {:<24} {:<24}", name_of(kind), fit_text(saved),
                        fit_text(fit_memory(results, kind, &StepMemory::step)));
    text += saved ? fmt::format("{} lengths over {:.3g} doublings\n", saved->points, saved->doublings)
                  : "fewer than two lengths ran\n";
  }
  for (const LargestSequence& l : results.largest)
    text += fmt::format("{} attention: {} tokens are the most that fit {} by plan, in steps of {}\n",
                        name_of(l.attention), l.tokens, format_bytes(l.available), kContextStep);
  return text;
}

nlohmann::ordered_json to_json(const MemoryResults& r) {
  using Json = nlohmann::ordered_json;
  Json rows = Json::array(), fits = Json::object(), largest = Json::object();
  for (const MemoryRow& row : r.rows) rows.push_back(row_json(row));
  for (const AttentionKind kind : r.kinds())
    fits[name_of(kind)] = {{"attention_saved_bytes", fit_json(fit_memory(r, kind, &StepMemory::saved))},
                           {"attention_peak_bytes", fit_json(fit_memory(r, kind, &StepMemory::attention))},
                           {"step_peak_bytes", fit_json(fit_memory(r, kind, &StepMemory::step))}};
  for (const LargestSequence& l : r.largest)
    largest[name_of(l.attention)] = {
        {"tokens", l.tokens}, {"in_steps_of_tokens", kContextStep}, {"available_bytes", l.available}};
  return {{"device", r.device},
          {"precision", r.precision},
          {"layers", r.layers},
          {"heads", r.heads},
          {"channels", r.channels},
          {"recompute", r.recompute},
          {"classifier_chunk_tokens", r.classifier_chunk},
          {"deterministic", r.deterministic},
          {"timed_steps", r.steps},
          {"rows", std::move(rows)},
          {"bytes_as_power_of_tokens", std::move(fits)},
          {"largest_that_fits_by_plan", std::move(largest)}};
}

std::string to_svg(const MemoryResults& results) {
  SvgPlot plot{
      .title = fmt::format("Memory of a training step on {}: one sequence of N tokens", results.device),
      .x_label = "tokens of the sequence, N",
      .y_label = "bytes",
      .panels = {},
      .y_axis = SvgPlot::YAxis::kBytes,
      .columns = 1};
  add_panel(plot, results, "Saved by attention from the forward to the backward, all layers",
            &StepMemory::saved, Slopes::kShown);
  add_panel(plot, results, "Peak of the whole step", &StepMemory::step, Slopes::kHidden);
  for (const MemoryRow& row : results.rows)
    if (row.outcome != Outcome::kRan && row.available > 0 && plot.panels.back().levels.empty())
      plot.panels.back().levels.push_back(
          {static_cast<double>(row.available), "available: " + format_bytes(row.available)});
  return plot.draw();
}

}  // namespace tessera
