#include "train/bench/attention_results.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"
#include "kernels/base/ledger.h"
#include "kernels/base/text.h"
#include "train/plot/svg_plot.h"

namespace tessera {
namespace {

double tflops(const AttentionCell& cell, bool backward) {
  return attention_flops(cell.problem, backward) / ((backward ? cell.backward_ms : cell.forward_ms) * 1e9);
}

// The cell of the yardstick among those of one problem, if it was measured there.
const AttentionCell* yardstick(std::span<const AttentionCell> cells, const AttnProblem& problem) {
  for (const AttentionCell& cell : cells)
    if (cell.rung == kYardstick && cell.why_not.empty() && same_problem(cell.problem, problem)) return &cell;
  return nullptr;
}

// The cell of the same rung and problem without the extra, if this one has one and both were measured.
const AttentionCell* without_extra(std::span<const AttentionCell> cells, const AttentionCell& cell) {
  if (cell.extra.empty() || !cell.why_not.empty()) return nullptr;
  for (const AttentionCell& other : cells)
    if (other.rung == cell.rung && other.extra.empty() && other.why_not.empty() &&
        same_problem(other.problem, cell.problem))
      return &other;
  return nullptr;
}

ExtraPrice price_of(const AttentionCell& with, const AttentionCell& without) {
  return {.forward = with.forward_ms / without.forward_ms - 1,
          .backward = with.backward_ms / without.backward_ms - 1,
          .both = (with.forward_ms + with.backward_ms) / (without.forward_ms + without.backward_ms) - 1,
          .problems = 1};
}

// Decimal, as bandwidth is.
std::string gigabytes(double bytes) { return bytes == 0 ? "-" : fmt::format("{:.3g} GB", bytes / 1e9); }

double moved(const attention::Traffic& traffic) { return traffic.read + traffic.written; }

nlohmann::ordered_json direction_json(const AttentionCell& cell, const AttentionCell* other, bool backward,
                                      double gemm_peak) {
  const double ms = backward ? cell.backward_ms : cell.forward_ms;
  const attention::Traffic& traffic = backward ? cell.backward : cell.forward;
  nlohmann::ordered_json json{{"ms", ms},
                              {"tflops", tflops(cell, backward)},
                              {"share_of_gemm_peak", 1e12 * tflops(cell, backward) / gemm_peak}};
  if (other) json["ratio_to_cudnn"] = (backward ? other->backward_ms : other->forward_ms) / ms;
  if (moved(traffic) > 0) {
    json["device_bytes_read"] = traffic.read;
    json["device_bytes_written"] = traffic.written;
    json["bytes_loaded"] = traffic.loaded;
    json["bytes_stored"] = traffic.stored;
  }
  return json;
}

}  // namespace

double attention_flops(const AttnProblem& p, bool backward) {
  const auto queries = static_cast<double>(p.batch * p.tokens);
  const double pairs = attention::visible_pairs(p) - (p.mask.causal ? queries / 2 : 0);
  return 4 * static_cast<double>(p.heads) * pairs * p.head_dim * (backward ? 2.5 : 1);
}

bool same_problem(const AttnProblem& a, const AttnProblem& b) {
  return a.batch == b.batch && a.tokens == b.tokens && a.heads == b.heads && a.kv_heads == b.kv_heads &&
         a.head_dim == b.head_dim && a.mask.causal == b.mask.causal && a.mask.window == b.mask.window &&
         a.mask.documents == b.mask.documents && a.mask.blocks.begins == b.mask.blocks.begins &&
         a.mask.choice.size == b.mask.choice.size && a.mask.choice.count == b.mask.choice.count;
}

std::string to_string(const AttentionCell& cell) {
  const AttnProblem& p = cell.problem;
  const std::string grouped =
      p.kv_heads == p.heads ? "" : fmt::format(" ({} of keys and values)", p.kv_heads);
  return fmt::format("{} x {} tokens, {} heads{} of {}, {}", p.batch, p.tokens, p.heads, grouped, p.head_dim,
                     cell.mask.name);
}

std::map<std::string, MeanRatio> mean_ratios(const AttentionResults& results) {
  std::map<std::string, MeanRatio> means;  // sums of logarithms until the end
  for (const AttentionCell& cell : results.cells) {
    const AttentionCell* other = yardstick(results.cells, cell.problem);
    if (cell.rung == kYardstick || !cell.why_not.empty() || !other) continue;
    if (!cell.extra.empty()) continue;  // the yardstick has none
    MeanRatio& mean = means[cell.rung];
    mean.forward += std::log(other->forward_ms / cell.forward_ms);
    mean.backward += std::log(other->backward_ms / cell.backward_ms);
    ++mean.problems;
  }
  for (auto& [rung, mean] : means) {
    mean.forward = std::exp(mean.forward / static_cast<double>(mean.problems));
    mean.backward = std::exp(mean.backward / static_cast<double>(mean.problems));
  }
  return means;
}

std::map<std::pair<std::string, std::string>, ExtraPrice> extra_prices(const AttentionResults& results) {
  std::map<std::pair<std::string, std::string>, ExtraPrice> means;  // sums of logarithms until the end
  for (const AttentionCell& cell : results.cells) {
    const AttentionCell* other = without_extra(results.cells, cell);
    if (!other) continue;
    const ExtraPrice price = price_of(cell, *other);
    ExtraPrice& mean = means[{cell.rung, cell.extra}];
    mean.forward += std::log1p(price.forward);
    mean.backward += std::log1p(price.backward);
    mean.both += std::log1p(price.both);
    ++mean.problems;
  }
  for (auto& [which, mean] : means)
    for (double* share : {&mean.forward, &mean.backward, &mean.both})
      *share = std::expm1(*share / static_cast<double>(mean.problems));
  return means;
}

std::string old_cudnn_warning(int version) {
  constexpr int kExpected = 91900;
  if (version == 0 || version >= kExpected) return "";
  const auto text = [](int v) { return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100); };
  return fmt::format(
      "warning: the ratios compare with cuDNN {}, whose attention is slower than that of later versions; it "
      "should be {} or later. `pip install 'nvidia-cudnn-cu13>={}'` brings one; LD_LIBRARY_PATH names its "
      "folder",
      text(version), text(kExpected), text(kExpected));
}

std::string problem_table(std::span<const AttentionCell> cells, double gemm_peak, const std::string& cudnn) {
  const AttentionCell* other = yardstick(cells, cells.front().problem);
  const auto any = [&](auto&& holds) { return std::any_of(cells.begin(), cells.end(), holds); };
  const bool traffic_known = any([](const AttentionCell& cell) { return moved(cell.forward) > 0; });
  std::string table = to_string(cells.front());
  table += fmt::format(", {:.0f} visible pairs", attention::visible_pairs(cells.front().problem));
  table += fmt::format("{}\n  {:<13}", other ? ", beside cuDNN " + cudnn : "", "");
  for (const char* direction : {"forward ms", "backward ms"}) {
    table += fmt::format(" {:>12} {:>8} {:>5}", direction, "TFLOP/s", "peak");
    if (other) table += fmt::format(" {:>8}", "x cudnn");
  }
  table += fmt::format(" {:>11} {:>11}", "saved", "workspace");
  table += traffic_known ? fmt::format(" {:>10} {:>10}\n", "moves fwd", "moves bwd") : "\n";
  for (const AttentionCell& cell : cells) {
    const bool is_plain = cell.extra.empty();
    table += fmt::format("  {:<13}", is_plain ? cell.rung : "  " + cell.extra);
    if (!cell.why_not.empty()) {
      table += fmt::format(" skipped: {}\n", cell.why_not);
      continue;
    }
    for (const bool backward : {false, true}) {
      const double ms = backward ? cell.backward_ms : cell.forward_ms;
      table += fmt::format(" {:>12.3f} {:>8.4g} {:>4.0f}%", ms, tflops(cell, backward),
                           1e14 * tflops(cell, backward) / gemm_peak);
      if (!other) continue;
      const double ratio = (backward ? other->backward_ms : other->forward_ms) / ms;
      table += is_plain ? fmt::format(" {:>8.2f}", ratio) : fmt::format(" {:>8}", "-");
    }
    table +=
        fmt::format(" {:>11} {:>11}", format_bytes(cell.saved_bytes), format_bytes(cell.workspace_bytes));
    if (traffic_known)
      table += fmt::format(" {:>10} {:>10}", gigabytes(moved(cell.forward)), gigabytes(moved(cell.backward)));
    if (const AttentionCell* without = without_extra(cells, cell)) {
      const ExtraPrice price = price_of(cell, *without);
      table += fmt::format("   adds {:+.1f}% {:+.1f}%", 100 * price.forward, 100 * price.backward);
    }
    table += "\n";
  }
  return table;
}

nlohmann::ordered_json to_json(const AttentionResults& results) {
  nlohmann::ordered_json cells = nlohmann::ordered_json::array(), means = nlohmann::ordered_json::object();
  for (const AttentionCell& cell : results.cells) {
    const AttnProblem& p = cell.problem;
    nlohmann::ordered_json json{{"rung", cell.rung},      {"head_dim", p.head_dim},
                                {"mask", cell.mask.name}, {"batch", p.batch},
                                {"tokens", p.tokens},     {"heads", p.heads},
                                {"kv_heads", p.kv_heads}, {"dtype", p.dtype == ATTN_BF16 ? "bf16" : "fp32"}};
    json["visible_pairs"] = attention::visible_pairs(p);
    if (!cell.extra.empty()) json["with"] = cell.extra;
    if (cell.why_not.empty()) {
      const AttentionCell* other = cell.extra.empty() ? yardstick(results.cells, p) : nullptr;
      json["forward"] = direction_json(cell, other, false, results.gemm_peak);
      json["backward"] = direction_json(cell, other, true, results.gemm_peak);
      json["saved_bytes"] = cell.saved_bytes;
      json["workspace_bytes"] = cell.workspace_bytes;
      if (const AttentionCell* without = without_extra(results.cells, cell)) {
        const ExtraPrice price = price_of(cell, *without);
        json["adds"] = {{"forward", price.forward}, {"backward", price.backward}, {"both", price.both}};
      }
    } else {
      json["not_measured"] = cell.why_not;
    }
    cells.push_back(std::move(json));
  }
  for (const auto& [rung, mean] : mean_ratios(results))
    means[rung] = {{"forward", mean.forward}, {"backward", mean.backward}, {"problems", mean.problems}};
  return {{"device", results.device},
          {"cudnn", results.cudnn},
          {"gemm_peak_tflops", results.gemm_peak / 1e12},
          {"cudnn_deterministic", results.cudnn_deterministic},
          {"repeats", results.repeats},
          {"cells", std::move(cells)},
          {"geometric_mean_of_ratios_to_cudnn", std::move(means)}};
}

std::string to_svg(const AttentionResults& results) {
  SvgPlot plot{.title = fmt::format("Attention on {}: TFLOP/s against sequence length", results.device),
               .x_label = "sequence length",
               .y_label = "TFLOP/s",
               .panels = {},
               .one_scale = true};
  for (const AttentionCell& cell : results.cells) {
    if (!cell.in_sweep || !cell.why_not.empty() || !cell.extra.empty()) continue;
    for (const bool backward : {false, true}) {
      const std::string title = fmt::format("head dim {}, {}, {}", cell.problem.head_dim, cell.mask.name,
                                            backward ? "backward" : "forward");
      plot.line(title, cell.rung)
          .points.push_back({static_cast<double>(cell.problem.tokens), tflops(cell, backward)});
    }
  }
  if (results.gemm_peak > 0)
    for (SvgPlot::Panel& panel : plot.panels)
      panel.levels.push_back(
          {results.gemm_peak / 1e12, fmt::format("GEMM peak: {:.4g} TFLOP/s", results.gemm_peak / 1e12)});
  return plot.draw();
}

}  // namespace tessera
