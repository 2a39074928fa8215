#include "train/bench/decode_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tessera {

double share_of_bandwidth(const DecodeCell& cell, double bandwidth) {
  return cell.bytes / bandwidth / (cell.ms * 1e-3);
}

std::string to_string(const AttnDecodeProblem& p, CacheDtype cache) {
  std::string text =
      fmt::format("{} x {} cached tokens{}, {} heads of {}", p.batch, p.capacity,
                  is_small(cache) ? fmt::format(" in {}", name_of(cache)) : "", p.heads, p.head_dim);
  if (p.kv_heads != p.heads) text += fmt::format(", group {}", p.heads / p.kv_heads);
  return text + (p.dtype == ATTN_BF16 ? "" : ", fp32");
}

std::string table_of(const DecodeResults& results) {
  size_t width = 52;
  for (const DecodeCell& cell : results.cells)
    width = std::max(width, to_string(cell.problem, cell.cache).size() + 2);
  std::string text = fmt::format("{:<{}}{:>10}{:>10}{:>10}{:>8}{:>15}\n", "", width, "MB", "us", "bound us",
                                 "share", "cudnn us");
  for (const DecodeCell& cell : results.cells) {
    const bool bounded = results.bandwidth > 0;
    const std::string bound = bounded ? fmt::format("{:.2f}", cell.bytes / results.bandwidth * 1e6) : "",
                      share = bounded
                                  ? fmt::format("{:.0f}%", 100 * share_of_bandwidth(cell, results.bandwidth))
                                  : "",
                      cudnn = cell.why_no_cudnn.empty() ? fmt::format("{:.2f}", 1e3 * cell.cudnn_ms)
                                                        : cell.why_no_cudnn;
    text += fmt::format("{:<{}}{:>10.2f}{:>10.2f}{:>10}{:>8}{:>15}\n", to_string(cell.problem, cell.cache),
                        width, cell.bytes / 1e6, 1e3 * cell.ms, bound, share, cudnn);
  }
  return text;
}

nlohmann::ordered_json to_json(const DecodeResults& results) {
  nlohmann::ordered_json cells = nlohmann::ordered_json::array();
  for (const DecodeCell& cell : results.cells) {
    const AttnDecodeProblem& p = cell.problem;
    nlohmann::ordered_json one{{"batch", p.batch},
                               {"cached_tokens", p.capacity},
                               {"heads", p.heads},
                               {"kv_heads", p.kv_heads},
                               {"head_dim", p.head_dim},
                               {"dtype", p.dtype == ATTN_BF16 ? "bf16" : "fp32"},
                               {"cache_dtype", name_of(cell.cache)},
                               {"ms", cell.ms},
                               {"bytes", cell.bytes}};
    if (results.bandwidth > 0) one["share_of_bandwidth"] = share_of_bandwidth(cell, results.bandwidth);
    if (cell.why_no_cudnn.empty()) one["cudnn_ms"] = cell.cudnn_ms;
    cells.push_back(one);
  }
  return {{"device", results.device},
          {"cudnn", results.cudnn},
          {"bandwidth", results.bandwidth},
          {"repeats", results.repeats},
          {"cells", cells}};
}

}  // namespace tessera
