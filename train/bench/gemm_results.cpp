#include "train/bench/gemm_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

double flops_per_second(const GemmKey& key, double ms) { return gemm_of(key).flops() / ms * 1e3; }

// Its place in the library's order, counted from 1
int64_t place_of(const GemmRow& row, const GemmAlgorithm& algorithm) {
  return std::ranges::find(row.times, algorithm, &GemmTime::algorithm) - row.times.begin() + 1;
}

std::string text_of(const GemmAlgorithm& a) {
  if (a.id == GemmAlgorithm::kOwn) return "ours";
  return fmt::format("id {}, tile {}, stages {}, cluster {}{}{}{}", a.id, a.tile, a.stages, a.cluster_shape,
                     a.split_k > 1 ? fmt::format(", split k {}", a.split_k) : "",
                     a.swizzle ? fmt::format(", swizzle {}", a.swizzle) : "",
                     a.custom ? fmt::format(", custom {}", a.custom) : "");
}

template <class Ms>
double sum_over(const GemmResults& results, Ms&& ms) {
  double sum = 0;
  for (const GemmRow& row : results.rows)
    if (!row.times.empty()) sum += static_cast<double>(row.calls) * ms(choose(row.times));
  return sum;
}

}  // namespace

double first_ms(const GemmResults& results) {
  return sum_over(results, [](const GemmChoice& choice) { return choice.first_ms; });
}

double chosen_ms(const GemmResults& results) {
  return sum_over(results, [](const GemmChoice& choice) { return choice.ms; });
}

GemmTable table_from(const GemmResults& results) {
  GemmTable table{.platform = results.platform, .choices = {}};
  for (const GemmRow& row : results.rows)
    if (!row.times.empty()) table.choices[row.key] = choose(row.times);
  return table;
}

std::string table_of(const GemmResults& results) {
  size_t width = 0;
  for (const GemmRow& row : results.rows) width = std::max(width, describe(row.key).size());
  std::string text = fmt::format("{:<{}}{:>7}{:>11}{:>11}{:>9}{:>8}{:>7}  {}\n", "GEMM", width, "calls",
                                 "first ms", "chosen ms", "TFLOP/s", "of peak", "gain", "place, algorithm");
  for (const GemmRow& row : results.rows) {
    text += fmt::format("{:<{}}{:>7}", describe(row.key), width, row.calls);
    if (row.times.empty()) {
      text += "  the library computes it in two passes\n";
      continue;
    }
    const GemmChoice choice = choose(row.times);
    const double speed = flops_per_second(row.key, choice.ms);
    text += fmt::format("{:>11.4f}{:>11.4f}{:>9.1f}{:>7.1f}%{:>6.1f}%  {} of {}: {}\n", choice.first_ms,
                        choice.ms, speed / 1e12, 100 * speed / results.peak_flops,
                        100 * (1 - choice.ms / choice.first_ms), place_of(row, choice.algorithm),
                        row.times.size(), text_of(choice.algorithm));
  }
  const double first = first_ms(results), chosen = chosen_ms(results);
  return text + fmt::format("{:<{}}{:>7}{:>11.3f}{:>11.3f}   {:.3f} ms less\n", "all of a micro-batch", width,
                            "", first, chosen, first - chosen);
}

nlohmann::ordered_json to_json(const GemmResults& results) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const GemmRow& row : results.rows) {
    nlohmann::ordered_json one{{"gemm", describe(row.key)},
                               {"m", row.key.m},
                               {"n", row.key.n},
                               {"k", row.key.k},
                               {"calls", row.calls}};
    if (!row.times.empty()) {
      const GemmChoice choice = choose(row.times);
      one["first_ms"] = choice.first_ms;
      one["chosen_ms"] = choice.ms;
      one["chosen"] = place_of(row, choice.algorithm);
      one["tflops"] = flops_per_second(row.key, choice.ms) / 1e12;
      for (const GemmTime& time : row.times) one["ms"].push_back(time.ms);
    }
    rows.push_back(one);
  }
  return {{"device", results.platform.device},
          {"cublaslt", results.platform.cublaslt},
          {"gemm_peak_tflops", results.peak_flops / 1e12},
          {"first_ms", first_ms(results)},
          {"chosen_ms", chosen_ms(results)},
          {"gemms", rows}};
}

}  // namespace tessera
