#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace tessera::cpu {
namespace {

// softmax(row / temperature): its base and the logarithm of its sum
struct Softmax {
  double scale, base, log_sum;

  Softmax(const float* row, int64_t count, double temperature)
      : scale(1 / temperature), base(scale * *std::max_element(row, row + count)), log_sum(0) {
    double sum = 0;
    for (int64_t v = 0; v < count; ++v) sum += std::exp(scale * row[v] - base);
    log_sum = std::log(sum);
  }
  double log_of(float logit) const { return scale * logit - base - log_sum; }
};

// Logarithms of the probabilities that teacher and student give an event
struct LogPair {
  double teacher, student;
};

// Both divergences of the probabilities of some events, each of which is added once
struct Divergences {
  double forward = 0, reverse = 0;
  void add(const LogPair& of) {
    if (of.teacher == -INFINITY && of.student == -INFINITY) return;
    const double p = std::exp(of.teacher), q = std::exp(of.student);
    if (p > 0) forward += p * (of.teacher - of.student);
    if (q > 0) reverse += q * (of.student - of.teacher);
  }
  double mixed(double share) const { return (1 - share) * forward + (share > 0 ? share * reverse : 0); }
  // 1 / t of the derivative with respect to a logit of an event, over the share that the logit's token has of
  // its probability
  double slope(const LogPair& of, double share) const {
    const double p = std::exp(of.teacher), q = std::exp(of.student);
    const double backward = share > 0 && q > 0 ? share * q * (of.student - of.teacher - reverse) : 0;
    return (1 - share) * (q - p) + backward;
  }
};

// The losses and gradients of a row, whose token v is of the event on_event(v)
struct DistilledRow {
  const Distillation& of;
  int64_t n;
  float* row;
  Softmax plain, own;

  DistilledRow(const Distillation& a, int64_t n)
      : of(a),
        n(n),
        row(a.logits.as<float>() + n * a.logits.shape[1]),
        plain(row, a.vocab_size, 1),
        own(row, a.vocab_size, a.temperature) {}

  template <class Slope>
  void write(const Divergences& found, const Slope& slope_of) const {
    const int64_t padded = of.logits.shape[1], V = of.vocab_size;
    const int32_t target = of.targets.as<int32_t>()[n];
    const double t = of.temperature, c = of.cross_entropy;
    const double weight = of.weights ? of.weights.as<float>()[n] : 1;
    of.losses.as<float>()[n] = static_cast<float>(
        weight * (-c * plain.log_of(row[target]) + (1 - c) * t * t * found.mixed(of.reverse)));
    if (!of.want_gradient) return;
    const double unit = weight * (of.gradient_scale ? *of.gradient_scale.as<float>() : 1);
    for (int64_t v = 0; v < V; ++v) {
      const double of_target = std::exp(plain.log_of(row[v])) - (v == target ? 1 : 0);
      row[v] = static_cast<float>(unit * (c * of_target + (1 - c) * t * slope_of(v)));
    }
    std::fill(row + V, row + padded, 0.0f);
  }
};

void run_whole_row(const Distillation& a, int64_t n) {
  const DistilledRow row(a, n);
  const float* teacher = a.teacher.as<float>() + n * a.teacher.shape[1];
  const Softmax its(teacher, a.vocab_size, a.temperature);
  const auto event = [&](int64_t v) { return LogPair{its.log_of(teacher[v]), row.own.log_of(row.row[v])}; };
  Divergences found;
  for (int64_t v = 0; v < a.vocab_size; ++v) found.add(event(v));
  row.write(found, [&](int64_t v) { return found.slope(event(v), a.reverse); });
}

// `place`: [V] of kNone, which it is again afterwards
constexpr int32_t kNone = -1;
void run_largest_row(const Distillation& a, int64_t n, std::vector<int32_t>& place) {
  const DistilledRow row(a, n);
  const int64_t V = a.vocab_size, K = a.largest_ids.shape[1];
  const int32_t* ids = a.largest_ids.as<int32_t>() + n * K;
  const float* values = a.largest.as<float>() + n * (K + 1);
  const double scale = row.own.scale, others = values[K];
  const double base = std::max(scale * *std::max_element(values, values + K), others);
  double sum = std::exp(others - base), others_own = 0;
  for (int64_t k = 0; k < K; ++k) {
    sum += std::exp(scale * values[k] - base);
    place[static_cast<size_t>(ids[k])] = static_cast<int32_t>(k);
  }
  for (int64_t v = 0; v < V; ++v)
    if (place[static_cast<size_t>(v)] == kNone) others_own += std::exp(row.own.log_of(row.row[v]));
  const double log_sum = base + std::log(sum);
  const LogPair of_others{others - log_sum, std::log(others_own)};
  const auto event = [&](int64_t k) {
    return LogPair{scale * values[k] - log_sum, row.own.log_of(row.row[ids[k]])};
  };
  Divergences found;
  for (int64_t k = 0; k < K; ++k) found.add(event(k));
  found.add(of_others);
  const double of_all_others = found.slope(of_others, a.reverse);
  row.write(found, [&](int64_t v) {
    const int32_t k = place[static_cast<size_t>(v)];
    if (k != kNone) return found.slope(event(k), a.reverse);
    return others_own > 0 ? of_all_others * std::exp(row.own.log_of(row.row[v])) / others_own : 0;
  });
  for (int64_t k = 0; k < K; ++k) place[static_cast<size_t>(ids[k])] = kNone;
}

void check_ids(const Distillation& a) {
  const int64_t K = a.largest_ids.shape[1];
  const int32_t *ids = a.largest_ids.as<int32_t>(), *targets = a.targets.as<int32_t>();
  for (int64_t i = 0; i < a.largest_ids.numel(); ++i)
    check(targets[i / K] == kNoTarget || (ids[i] >= 0 && ids[i] < a.vocab_size),
          "{}: the id {} at row {} is outside the vocabulary of {}", a.kName, ids[i], i / K, a.vocab_size);
}

}  // namespace

void run(const Distillation& a, const Launch& /*on*/) {
  const int64_t N = a.logits.shape[0], padded = a.logits.shape[1];
  const int32_t* targets = a.targets.as<int32_t>();
  for (int64_t n = 0; n < N; ++n)
    check((targets[n] >= 0 && targets[n] < a.vocab_size) || targets[n] == kNoTarget,
          "{}: target {} at row {} is outside the vocabulary of {}", a.kName, targets[n], n, a.vocab_size);
  if (!a.teacher) check_ids(a);
#pragma omp parallel
  {
    std::vector<int32_t> place(a.teacher ? 0 : static_cast<size_t>(a.vocab_size), kNone);
#pragma omp for
    for (int64_t n = 0; n < N; ++n) {
      if (targets[n] != kNoTarget) {
        a.teacher ? run_whole_row(a, n) : run_largest_row(a, n, place);
        continue;
      }
      a.losses.as<float>()[n] = 0;
      float* row = a.logits.as<float>() + n * padded;
      if (a.want_gradient) std::fill(row, row + padded, 0.0f);
    }
  }
}

void run(const LargestLogits& a, const Launch& /*on*/) {
  const int64_t N = a.logits.shape[0], padded = a.logits.shape[1], V = a.vocab_size, K = a.ids.shape[1];
#pragma omp parallel
  {
    std::vector<int32_t> order(static_cast<size_t>(V));
#pragma omp for
    for (int64_t n = 0; n < N; ++n) {
      const float* row = a.logits.as<float>() + n * padded;
      const auto is_before = [&](int32_t v, int32_t w) {
        return row[v] > row[w] || (row[v] == row[w] && v < w);
      };
      std::iota(order.begin(), order.end(), 0);
      const auto middle = order.begin() + static_cast<std::ptrdiff_t>(K);
      if (K < V) std::nth_element(order.begin(), middle, order.end(), is_before);
      const std::span largest(order.begin(), middle), others(middle, order.end());
      std::ranges::sort(largest);
      float* values = a.values.as<float>() + n * (K + 1);
      std::ranges::copy(largest, a.ids.as<int32_t>() + n * K);
      for (size_t k = 0; k < largest.size(); ++k) values[k] = row[largest[k]];
      double most = -INFINITY, sum = 0;
      for (const int32_t v : others) most = std::max(most, static_cast<double>(row[v]) / a.temperature);
      for (const int32_t v : others) sum += std::exp(static_cast<double>(row[v]) / a.temperature - most);
      values[K] =
          others.empty() ? -std::numeric_limits<float>::infinity() : static_cast<float>(most + std::log(sum));
    }
  }
}

}  // namespace tessera::cpu
