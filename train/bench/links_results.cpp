#include "train/bench/links_results.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "kernels/base/check.h"

namespace tessera {
namespace {

std::string rate_text(double bytes_per_second) {
  return bytes_per_second > 0 ? fmt::format("{:.3g}", bytes_per_second / 1e9) : "-";
}

// The middle one, the larger of two
double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Slow {
  double share;  // of the median's speed
  std::string text;
};

// A figure of several ranks or links
struct Figure {
  std::string what, name;
  double speed;      // more is better; 0: there is none
  std::string text;  // with its unit
};

void find_slow(const std::vector<Figure>& figures, const std::function<std::string(double)>& text_of,
               std::vector<Slow>& found) {
  std::vector<double> speeds;
  for (const Figure& one : figures)
    if (one.speed > 0) speeds.push_back(one.speed);
  if (speeds.size() < 2) return;
  const double median = median_of(speeds);
  for (const Figure& one : figures)
    if (one.speed > 0 && one.speed < kSlowShare * median)
      found.push_back({.share = one.speed / median,
                       .text = fmt::format("{}: {} {}, the median is {}", one.name, one.what, one.text,
                                           text_of(median))});
}

std::string rates(double rate) { return rate_text(rate) + " GB/s"; }

}  // namespace

std::string links_table(const LinksResults& results) {
  std::string text = fmt::format("{:<5} {:<16} {:<24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "rank",
                                 "machine", "device", "TFLOP/s", "memory", "host", "ranks", "write", "read");
  for (size_t r = 0; r < results.ranks.size(); ++r) {
    const LinksResults::Rank& one = results.ranks[r];
    text += fmt::format("{:<5} {:<16} {:<24} {:>8.3g} {:>8} {:>8} {:>8} {:>8} {:>8}\n", r, one.machine,
                        one.device, one.flops / 1e12, rate_text(one.memory), rate_text(one.host),
                        rate_text(one.send), rate_text(one.disk_write), rate_text(one.disk_read));
  }
  text +=
      "GB/s: memory and host: a copy in the device's and the host's memory; ranks: to the ranks of the same "
      "machine;\nwrite, read: the disk of the folder\n";
  if (results.links.empty()) return text;
  text += fmt::format("\n{:<16} {:<16} {:>8} {:>12}\n", "from", "to", "GB/s", "latency, us");
  for (const LinksResults::Link& one : results.links)
    text += fmt::format("{:<16} {:<16} {:>8} {:>12.1f}\n", results.ends[static_cast<size_t>(one.from)],
                        results.ends[static_cast<size_t>(one.to)], rate_text(one.rate), 1e6 * one.seconds);
  return text;
}

std::vector<std::string> slow_ones(const LinksResults& results) {
  using Rank = LinksResults::Rank;
  std::vector<Slow> found;
  const auto of_ranks = [&](const char* what, double Rank::*figure,
                            const std::function<std::string(double)>& text_of) {
    std::vector<Figure> figures;
    for (size_t r = 0; r < results.ranks.size(); ++r)
      figures.push_back({.what = what,
                         .name = fmt::format("rank {} on {}", r, results.ranks[r].machine),
                         .speed = results.ranks[r].*figure,
                         .text = text_of(results.ranks[r].*figure)});
    find_slow(figures, text_of, found);
  };
  of_ranks("its GEMM reaches", &Rank::flops,
           [](double flops) { return fmt::format("{:.3g} TFLOP/s", flops / 1e12); });
  of_ranks("the memory of its device copies", &Rank::memory, rates);
  of_ranks("the host's memory copies", &Rank::host, rates);
  of_ranks("it sends to its machine's ranks", &Rank::send, rates);
  of_ranks("the disk writes", &Rank::disk_write, rates);
  of_ranks("the disk reads", &Rank::disk_read, rates);
  std::vector<Figure> links, latencies;
  for (const LinksResults::Link& one : results.links) {
    const std::string name = fmt::format("{} to {}", results.ends[static_cast<size_t>(one.from)],
                                         results.ends[static_cast<size_t>(one.to)]);
    links.push_back({.what = "it sends", .name = name, .speed = one.rate, .text = rates(one.rate)});
    latencies.push_back({.what = "a message takes",
                         .name = name,
                         .speed = one.seconds > 0 ? 1 / one.seconds : 0,
                         .text = fmt::format("{:.1f} us", 1e6 * one.seconds)});
  }
  find_slow(links, rates, found);
  find_slow(
      latencies, [](double speed) { return fmt::format("{:.1f} us", 1e6 / speed); }, found);
  std::ranges::stable_sort(found, {}, &Slow::share);
  std::vector<std::string> texts;
  for (Slow& one : found) texts.push_back(std::move(one.text));
  return texts;
}

nlohmann::ordered_json json_of(const LinksResults& results) {
  nlohmann::ordered_json json{{"ranks", nlohmann::ordered_json::array()},
                              {"links", nlohmann::ordered_json::array()},
                              {"slow", slow_ones(results)}};
  for (const LinksResults::Rank& one : results.ranks)
    json["ranks"].push_back({{"machine", one.machine},
                             {"device", one.device},
                             {"gemm_tflops", one.flops / 1e12},
                             {"device_memory_gb_per_s", one.memory / 1e9},
                             {"host_memory_gb_per_s", one.host / 1e9},
                             {"within_machine_gb_per_s", one.send / 1e9},
                             {"disk_write_gb_per_s", one.disk_write / 1e9},
                             {"disk_read_gb_per_s", one.disk_read / 1e9}});
  for (const LinksResults::Link& one : results.links)
    json["links"].push_back({{"from", results.ends[static_cast<size_t>(one.from)]},
                             {"to", results.ends[static_cast<size_t>(one.to)]},
                             {"gb_per_s", one.rate / 1e9},
                             {"latency_us", 1e6 * one.seconds}});
  return json;
}

}  // namespace tessera
