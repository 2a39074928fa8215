#include "train/run/inside_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

using Json = nlohmann::ordered_json;

// A line has thousands of numbers in a large model. One that is not finite becomes null.
double five_digits(double value) { return std::strtod(fmt::format("{:.5g}", value).c_str(), nullptr); }

}  // namespace

Json inside_json(const InsideFigures& figures) {
  Json weights = Json::object(), gradients = Json::object(), updates = Json::object(),
       ratios = Json::object();
  for (const InsideFigures::Part& part : figures.parts)
    for (const InsideFigures::Norms& norms : part.layers) {
      weights[part.name].push_back(five_digits(norms.weight));
      gradients[part.name].push_back(five_digits(norms.gradient));
      updates[part.name].push_back(five_digits(norms.update));
      ratios[part.name].push_back(norms.weight > 0 ? five_digits(norms.update / norms.weight) : NAN);
    }
  const auto list = [](const std::vector<double>& values) {
    Json numbers = Json::array();
    for (const double value : values) numbers.push_back(five_digits(value));
    return numbers;
  };
  std::vector<double> largest;
  for (const std::vector<double>& heads : figures.largest_scores) largest.push_back(std::ranges::max(heads));
  Json line = {
      {"weight_norm", std::move(weights)},     {"gradient_norm", std::move(gradients)},
      {"update_norm", std::move(updates)},     {"update_ratio", std::move(ratios)},
      {"attention_logit", list(largest)},      {"attention_entropy", list(figures.attention_entropy)},
      {"dead_units", list(figures.dead_units)}};
  for (size_t layer = 0; layer < figures.largest_scores.size(); ++layer)
    line["head_logit"][fmt::format("layer {}", layer)] = list(figures.largest_scores[layer]);
  if (!figures.expert_load.empty()) {
    line["router_entropy"] = list(figures.router_entropy);
    line["dead_experts"] = list(figures.dead_experts);
    for (size_t layer = 0; layer < figures.expert_load.size(); ++layer)
      if (const std::vector<double>& loads = figures.expert_load[layer]; !loads.empty())
        line["expert_load"][fmt::format("layer {}", layer)] = list(loads);
  }
  for (const InsideFigures::Saturated& layer : figures.saturated) {
    line["fp8_saturated_x"][layer.name] = list(layer.x);
    line["fp8_saturated_dy"][layer.name] = list(layer.dy);
  }
  return line;
}

}  // namespace tessera
