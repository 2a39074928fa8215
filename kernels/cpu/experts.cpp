#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/fp8_values.h"
#include "kernels/cpu/gates.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gradients.h"

namespace tessera::cpu {
namespace {

// What a token's experts are worth
struct Weighed {
  int64_t experts, active;

  // The weights of `choices` by the rule, from logits
  void operator()(const float* logits, const int32_t* choices, const RouterRule& rule, float* weights) const {
    const float largest = *std::max_element(logits, logits + experts);
    float all = 0, chosen = 0;
    for (int64_t e = 0; e < experts; ++e) all += std::exp(logits[e] - largest);
    for (int64_t j = 0; j < active; ++j) {
      weights[j] = std::exp(logits[choices[j]] - largest);
      if (rule.router == Router::kSoftmax) weights[j] /= all;
      chosen += weights[j];
    }
    for (int64_t j = 0; rule.sums_to_one() && j < active; ++j) weights[j] /= chosen;
  }
};

// The rows of an expert
struct ExpertRows {
  int64_t first, count;
};
ExpertRows rows_of(const Tensor& offsets, int64_t expert) {
  const auto* at = offsets.as<int32_t>() + expert;
  return {.first = at[0], .count = at[1] - at[0]};
}

// The expert's rows of x; with `choices` the rows of their tokens, copied to `room`
const float* gathered(const Tensor& x, const Tensor& choices, int64_t active, ExpertRows of,
                      std::vector<float>& room) {
  const int64_t columns = x.shape[1];
  if (!choices) return x.as<float>() + of.first * columns;
  room.resize(static_cast<size_t>(of.count * columns));
#pragma omp parallel for
  for (int64_t r = 0; r < of.count; ++r)
    std::memcpy(room.data() + r * columns,
                x.as<float>() + choices.as<int32_t>()[of.first + r] / active * columns,
                static_cast<size_t>(columns) * sizeof(float));
  return room.data();
}

// Fills `rows` rows with bias[expert] of `bias` [.., O], for a product to add to: what it keeps of them
float fill_rows(const Tensor& bias, int64_t expert, float* to, int64_t rows) {
  if (!bias) return 0;
  const int64_t O = bias.shape[-1];
  for (int64_t r = 0; r < rows; ++r) std::copy_n(bias.as<float>() + expert * O, O, to + r * O);
  return 1;
}

}  // namespace

void run(const RouterForward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], E = a.weight.shape[0];
  multiply({.rows = N,
            .columns = E,
            .terms = C,
            .a = {a.x.as<float>(), C},
            .b = {a.weight.as<float>(), C, true},
            .keep = fill_rows(a.bias, 0, a.logits.as<float>(), N),
            .result = a.logits.as<float>(),
            .row = E});
}

void run(const RouterBackward& a, const Launch& /*on*/) {
  const int64_t N = a.x.shape[0], C = a.x.shape[1], E = a.weight.shape[0];
  const float* d = a.d_logits.as<float>();
  begin_gradients(a.accumulate, {a.dbias});
  if (a.dbias) add_rows(a.d_logits, a.dbias);
  if (a.dweight)
    multiply({.rows = E,
              .columns = C,
              .terms = N,
              .a = {d, E, true},
              .b = {a.x.as<float>(), C},
              .keep = a.accumulate ? 1.0f : 0.0f,
              .result = a.dweight.as<float>(),
              .row = C});
  if (a.add && a.add.data != a.dx.data) std::memcpy(a.dx.data, a.add.data, a.dx.bytes());
  multiply({.rows = N,
            .columns = C,
            .terms = E,
            .a = {d, E},
            .b = {a.weight.as<float>(), C},
            .keep = a.add ? 1.0f : 0.0f,
            .result = a.dx.as<float>(),
            .row = C});
}

void run(const ChooseExperts& a, const Launch& /*on*/) {
  const int64_t N = a.logits.shape[0], E = a.logits.shape[1], k = a.choices.shape[1];
  const Weighed weigh{.experts = E, .active = k};
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float* logits = a.logits.as<float>() + n * E;
    int32_t* choices = a.choices.as<int32_t>() + n * k;
    for (int64_t j = 0; j < k; ++j) {  // NaN counts as the smallest
      int32_t best = -1;
      for (int32_t e = 0; e < E; ++e) {
        if (std::find(choices, choices + j, e) != choices + j) continue;
        if (best < 0 || logits[e] > logits[best] || (std::isnan(logits[best]) && !std::isnan(logits[e])))
          best = e;
      }
      choices[j] = best;
    }
    weigh(logits, choices, a.rule, a.weights.as<float>() + n * k);
  }
}

// With w the weights, g their gradients and p the softmax of all logits:
//   weights that sum to one    d[c_j] = w_j (g_j - sum_i g_i w_i)
//   others                     d[e] = p_e (g_e - sum_i g_i p_i), g_e = 0 of experts that are not chosen
//   balance                    the latter, with g_e = balance c_e / (L M)^2
//   z                          d[e] += 2 z / (L M) log(sum exp) p_e
void run(const ChooseExpertsBackward& a, const Launch& /*on*/) {
  const int64_t N = a.logits.shape[0], E = a.logits.shape[1], k = a.choices.shape[1];
  const bool apart = a.rule.sums_to_one();
  std::vector<float> even(static_cast<size_t>(E));  // gradients of p that every token has that counts
  double choices_of_step = 0;
  for (int64_t i = 0; i < a.counts.numel(); ++i) {
    even[static_cast<size_t>(i % E)] += static_cast<float>(a.counts.as<int32_t>()[i]);
    choices_of_step += a.counts.as<int32_t>()[i];
  }
  const float share = choices_of_step > 0 ? static_cast<float>(static_cast<double>(k) / choices_of_step) : 0;
  for (float& each : even) each *= a.balance * share * share;
#pragma omp parallel
  {
    std::vector<float> p(static_cast<size_t>(E)), g(static_cast<size_t>(E));
#pragma omp for
    for (int64_t n = 0; n < N; ++n) {
      float* logits = a.logits.as<float>() + n * E;
      const int32_t* choices = a.choices.as<int32_t>() + n * k;
      const float* d_weights = a.d_weights.as<float>() + n * k;
      const float largest = *std::max_element(logits, logits + E);
      float all = 0;
      for (size_t e = 0; e < p.size(); ++e) all += p[e] = std::exp(logits[e] - largest);
      float chosen = 0, of_chosen = 0;
      for (int64_t j = 0; j < k; ++j) {
        const float weight = p[static_cast<size_t>(choices[j])];
        chosen += weight, of_chosen += weight * d_weights[j];
      }
      const bool counts = !a.counted || a.counted.as<int32_t>()[n] != 0;
      if (counts)
        g = even;
      else
        std::fill(g.begin(), g.end(), 0.0f);
      for (float& each : p) each /= all;
      for (int64_t j = 0; !apart && j < k; ++j) g[static_cast<size_t>(choices[j])] += d_weights[j];
      float mean = 0;
      for (size_t e = 0; e < p.size(); ++e) mean += p[e] * g[e];
      const float of_z = counts ? 2 * a.z * share * (largest + std::log(all)) : 0;
      std::vector<float>& d = g;
      for (size_t e = 0; e < p.size(); ++e) d[e] = p[e] * (g[e] - mean + of_z);
      for (int64_t j = 0; apart && j < k; ++j) {
        const float weight = std::exp(logits[choices[j]] - largest) / chosen;
        d[static_cast<size_t>(choices[j])] += weight * (d_weights[j] - of_chosen / chosen);
      }
      std::copy(d.begin(), d.end(), logits);
    }
  }
}

void run(const AssignExperts& a, const Launch& /*on*/) {
  const int64_t E = a.offsets.shape[0] - 1, choices = a.choices.numel();
  const auto* expert = a.choices.as<int32_t>();
  auto *offsets = a.offsets.as<int32_t>(), *rows = a.rows.as<int32_t>(), *places = a.places.as<int32_t>();
  std::vector<int32_t> next(static_cast<size_t>(E) + 1);
  for (int64_t i = 0; i < choices; ++i) ++next[static_cast<size_t>(expert[i]) + 1];
  const int64_t k = a.choices.shape[1];
  for (int64_t i = 0; a.counts && i < choices; ++i)
    a.counts.as<int32_t>()[expert[i]] += !a.counted || a.counted.as<int32_t>()[i / k] != 0;
  for (size_t e = 0; e < static_cast<size_t>(E); ++e) next[e + 1] += next[e];
  std::copy(next.begin(), next.end(), offsets);
  for (int64_t i = 0; i < choices; ++i) {
    const int32_t row = next[static_cast<size_t>(expert[i])]++;
    rows[row] = static_cast<int32_t>(i), places[i] = row;
  }
}

void run(const RouterSample& a, const Launch& /*on*/) {
  const int64_t N = a.logits.shape[0], E = a.logits.shape[1];
  const auto* offsets = a.offsets.as<int32_t>();
  const double average = static_cast<double>(offsets[E]) / static_cast<double>(E);
  for (int64_t e = 0; e < E; ++e)
    a.loads.as<float>()[e] = static_cast<float>((offsets[e + 1] - offsets[e]) / average);
  double sum = 0;
  for (int64_t n = 0; n < N; ++n) {
    const float* logits = a.logits.as<float>() + n * E;
    const double largest = *std::max_element(logits, logits + E);
    double all = 0, weighed = 0;
    for (int64_t e = 0; e < E; ++e) {
      const double below = logits[e] - largest, p = std::exp(below);
      all += p;
      if (p > 0) weighed += p * below;
    }
    sum += std::log(all) - weighed / all;
  }
  a.entropy.as<float>()[0] = static_cast<float>(sum / static_cast<double>(N));
}

void run(const ExpertsForward& given, const Launch& /*on*/) {
  ExpertsForward a = given;
  if (a.fp8_x) a.x = a.fp8_x.data, a.weight = a.fp8_weight.data;  // in fp32, see Fp8Matrix
  const int64_t E = a.weight.shape[0], O = a.weight.shape[1], C = a.weight.shape[2];
  std::vector<float> room;
  for (int64_t e = 0; e < E; ++e) {
    const ExpertRows rows = rows_of(a.offsets, e);
    if (rows.count == 0) continue;
    multiply({.rows = rows.count,
              .columns = O,
              .terms = C,
              .a = {gathered(a.x, a.x_rows, a.active(), rows, room), C},
              .b = {a.weight.as<float>() + e * O * C, C, true},
              .keep = fill_rows(a.bias, e, a.y.as<float>() + rows.first * O, rows.count),
              .result = a.y.as<float>() + rows.first * O,
              .row = O});
  }
}

void run(const ExpertsBackward& a, const Launch& /*on*/) {
  const int64_t E = a.weight.shape[0], O = a.weight.shape[1], C = a.weight.shape[2], k = a.active();
  begin_gradients(a.accumulate, {a.dweight, a.dbias});
  std::vector<float> of_x, of_dy, weighted;
  for (int64_t e = 0; e < E; ++e) {
    const ExpertRows rows = rows_of(a.offsets, e);
    if (rows.count == 0) continue;
    const float* dy = gathered(a.dy, a.dy_rows, k, rows, of_dy);
    const float* times = dy;  // the weight of a row
    if (a.weights) {
      weighted.resize(static_cast<size_t>(rows.count * O));
      for (int64_t r = 0; r < rows.count; ++r) {
        const float weight = a.weights.as<float>()[a.dy_rows.as<int32_t>()[rows.first + r]];
        for (int64_t o = 0; o < O; ++o) weighted[static_cast<size_t>(r * O + o)] = weight * dy[r * O + o];
      }
      times = weighted.data();
    }
    for (int64_t r = 0; a.dbias && r < rows.count; ++r)
      for (int64_t o = 0; o < O; ++o) a.dbias.as<float>()[e * O + o] += times[r * O + o];
    if (a.dweight)
      multiply({.rows = O,
                .columns = C,
                .terms = rows.count,
                .a = {times, O, true},
                .b = {gathered(a.x, a.x_rows, k, rows, of_x), C},
                .keep = 1,
                .result = a.dweight.as<float>() + e * O * C,
                .row = C});
    multiply({.rows = rows.count,
              .columns = C,
              .terms = O,
              .a = {a.fp8_dy ? gathered(a.fp8_dy.data, a.dy_rows, k, rows, of_dy) : dy, O},
              .b = a.fp8_dy ? Matrix{a.fp8_weight.data.as<float>() + e * O * C, O, true}
                            : Matrix{a.weight.as<float>() + e * O * C, C},
              .result = a.dx.as<float>() + rows.first * C,
              .row = C});
  }
}

// Calls of(rows, e) for the rows of each expert e that has any; without offsets for all as those of expert 0.
template <class Of>
static void each_expert(const Tensor& offsets, int64_t rows, const Of& of) {
  if (!offsets) return of(ExpertRows{.first = 0, .count = rows}, 0);
  for (int64_t e = 0; e + 1 < offsets.shape[0]; ++e)
    if (const ExpertRows own = rows_of(offsets, e); own.count > 0) of(own, e);
}

void run(const ExpertsLoraForward& a, const Launch& /*on*/) {
  const int64_t R = a.u.shape[0], r = a.u.shape[1], C = a.x.shape[1], O = a.y.shape[1];
  std::vector<float> room;
  each_expert(a.offsets, R, [&](ExpertRows rows, int64_t e) {
    multiply({.rows = rows.count,
              .columns = r,
              .terms = C,
              .scale = a.scale,
              .a = {gathered(a.x, a.x_rows, R / a.x.shape[0], rows, room), C},
              .b = {a.a.as<float>() + e * r * C, C, true},
              .result = a.u.as<float>() + rows.first * r,
              .row = r});
    multiply({.rows = rows.count,
              .columns = O,
              .terms = r,
              .a = {a.u.as<float>() + rows.first * r, r},
              .b = {a.b.as<float>() + e * O * r, r, true},
              .keep = 1,
              .result = a.y.as<float>() + rows.first * O,
              .row = O});
  });
}

// Rows times the weights of their choices; without weights the rows themselves
static const float* weighted(const Tensor& weights, const Tensor& choices, ExpertRows rows, int64_t columns,
                             const float* from, std::vector<float>& room) {
  if (!weights) return from;
  room.resize(static_cast<size_t>(rows.count * columns));
  for (int64_t i = 0; i < rows.count * columns; ++i)
    room[static_cast<size_t>(i)] =
        weights.as<float>()[choices.as<int32_t>()[rows.first + i / columns]] * from[i];
  return room.data();
}

void run(const ExpertsLoraBackward& a, const Launch& /*on*/) {
  const int64_t R = a.u.shape[0], r = a.u.shape[1], C = a.x.shape[1], O = a.dy.shape[1];
  begin_gradients(a.accumulate, {a.da, a.db});
  std::vector<float> of_x, of_dy, times;
  each_expert(a.offsets, R, [&](ExpertRows rows, int64_t e) {
    const float* dy = gathered(a.dy, a.dy_rows, R / a.dy.shape[0], rows, of_dy);
    float* u = a.u.as<float>() + rows.first * r;
    multiply({.rows = O,
              .columns = r,
              .terms = rows.count,
              .a = {weighted(a.weights, a.dy_rows, rows, O, dy, times), O, true},
              .b = {u, r},
              .keep = 1,
              .result = a.db.as<float>() + e * O * r,
              .row = r});
    multiply({.rows = rows.count,
              .columns = r,
              .terms = O,
              .scale = a.scale,
              .a = {dy, O},
              .b = {a.b.as<float>() + e * O * r, r},
              .result = u,
              .row = r});
    multiply({.rows = r,
              .columns = C,
              .terms = rows.count,
              .a = {weighted(a.weights, a.dy_rows, rows, r, u, times), r, true},
              .b = {gathered(a.x, a.x_rows, R / a.x.shape[0], rows, of_x), C},
              .keep = 1,
              .result = a.da.as<float>() + e * r * C,
              .row = C});
  });
}

void run(const ExpertsLoraInput& a, const Launch& /*on*/) {
  const int64_t r = a.u.shape[1], C = a.dx.shape[1];
  each_expert(a.offsets, a.u.shape[0], [&](ExpertRows rows, int64_t e) {
    multiply({.rows = rows.count,
              .columns = C,
              .terms = r,
              .a = {a.u.as<float>() + rows.first * r, r},
              .b = {a.a.as<float>() + e * r * C, C},
              .keep = 1,
              .result = a.dx.as<float>() + rows.first * C,
              .row = C});
  });
}

// What the bias of the next layer adds to the gradient of a choice's weight
static float of_bias(const GatedExpertsBackward& a, int64_t choice) {
  const int64_t C = a.bias.shape[1];
  const float* d = a.d_sum.as<float>() + choice / a.choices.shape[1] * C;
  return std::inner_product(d, d + C, a.bias.as<float>() + a.choices.as<int32_t>()[choice] * C, 0.0f);
}

void run(const GatedExpertsBackward& a, const Launch& /*on*/) {
  const int64_t R = a.dy.shape[0], F = a.dy.shape[1];
  with_gate(a.gate, [&]<class Of>(Of) {
#pragma omp parallel for
    for (int64_t r = 0; r < R; ++r) {
      const float* dy = a.dy.as<float>() + r * F;
      const float *gate = a.gate_up.as<float>() + r * 2 * F, *up = gate + F;
      float *dgate = a.d_gate_up.as<float>() + r * 2 * F, *dup = dgate + F;
      const int32_t number = a.rows.as<int32_t>()[r];
      float& choice = a.weights.as<float>()[number];
      const float weight = choice;
      float sum = a.bias ? of_bias(a, number) : 0;
      for (int64_t f = 0; f < F; ++f) {
        sum += dy[f] * Of::forward(gate[f], up[f]);
        const GateGradients d = Of::backward(weight * dy[f], gate[f], up[f]);
        dgate[f] = d.gate, dup[f] = d.up;
      }
      choice = sum;
    }
  });
  write_fp8(a.d_gate_up, DType::kE5M2, a.fp8_d_gate_up);
}

void run(const SumExperts& a, const Launch& /*on*/) {
  const int64_t N = a.y.shape[0], C = a.y.shape[1], k = a.places.shape[1];
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    float* y = a.y.as<float>() + n * C;
    const float* add = a.add ? a.add.as<float>() + n * C : nullptr;
    for (int64_t c = 0; c < C; ++c) y[c] = add ? add[c] : 0.0f;
    for (int64_t j = 0; j < k; ++j) {
      const float weight = a.weights ? a.weights.as<float>()[n * k + j] : 1.0f;
      const float* x = a.x.as<float>() + a.places.as<int32_t>()[n * k + j] * C;
      for (int64_t c = 0; c < C; ++c) y[c] += weight * x[c];
    }
  }
}

void run(const AddShared& a, const Launch& /*on*/) {
  const int64_t N = a.y.shape[0], C = a.y.shape[1];
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    const float gate = 1 / (1 + std::exp(-a.logits.as<float>()[n]));
    const float *x = a.x.as<float>() + n * C, *add = a.add.as<float>() + n * C;
    for (int64_t c = 0; c < C; ++c) a.y.as<float>()[n * C + c] = add[c] + gate * x[c];
  }
}

void run(const AddSharedBackward& a, const Launch& /*on*/) {
  const int64_t N = a.dy.shape[0], C = a.dy.shape[1];
#pragma omp parallel for
  for (int64_t n = 0; n < N; ++n) {
    float& logit = a.d_logits.as<float>()[n];
    const float gate = 1 / (1 + std::exp(-logit));
    const float *dy = a.dy.as<float>() + n * C, *x = a.x.as<float>() + n * C;
    logit = gate * (1 - gate) * std::inner_product(dy, dy + C, x, 0.0f);
    for (int64_t c = 0; c < C; ++c) a.dx.as<float>()[n * C + c] = gate * dy[c];
  }
}

}  // namespace tessera::cpu
