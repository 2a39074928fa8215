// What a loss may have besides cross entropy: z-loss, label smoothing, a teacher, pairs. On the CPU, against
// formulas in fp64.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/base/documents.h"
#include "tests/support.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

using Row = std::vector<double>;

double log_sum_exp(const Row& row) {
  double most = row[0], sum = 0;
  for (const double x : row) most = std::max(most, x);
  for (const double x : row) sum += std::exp(x - most);
  return most + std::log(sum);
}

class LossExtras : public ::testing::Test {
 protected:
  static constexpr int64_t N = 7, V = 61, kPadded = 64;

  Row row(const Tensor& logits, int64_t n, double scale = 1) const {
    Row found;
    for (int64_t v = 0; v < V; ++v)
      found.push_back(scale * static_cast<double>(floats(logits)[n * logits.shape[1] + v]));
    return found;
  }
  // A gradient, and zeros in the padding
  static void expect_row(const Tensor& found, int64_t n, const Row& want) {
    double squares = 0;
    for (const double w : want) squares += w * w;
    const double rms = std::sqrt(squares / static_cast<double>(want.size()));
    for (int64_t v = 0; v < kPadded; ++v) {
      const double wanted = v < V ? want[static_cast<size_t>(v)] : 0;
      ASSERT_NEAR(floats(found)[n * kPadded + v], wanted, tolerance::kCpuOperation * (std::abs(wanted) + rms))
          << n << ", " << v;
    }
  }
  static void expect_loss(const Tensor& losses, int64_t n, double want) {
    EXPECT_NEAR(floats(losses)[n], want, tolerance::kCpuOperation * (1 + std::abs(want))) << n;
  }

  HostTensors make;
  CpuStream cpu;
  const Tensor logits = make.normal({N, kPadded}, 3), targets = make.tokens({N}, V),
               weights = make.normal({N}), losses = make.poisoned({N});
};

TEST_F(LossExtras, ZLossAndLabelSmoothingAreTheirFormulas) {
  targets.as<int32_t>()[2] = kNoTarget;
  for (const auto& [z, s] : {std::pair(1e-2f, 0.0f), {0.0f, 0.1f}, {0.3f, 0.7f}})
    for (const float cap : {0.0f, 2.0f}) {
      SCOPED_TRACE(fmt::format("z {}, smoothing {}, cap {}", z, s, cap));
      const Tensor gradient = make.copy_of(logits), capped = make.copy_of(logits);
      if (cap > 0) cpu.run(CapLogits{.logits = capped, .cap = cap});
      const CrossEntropy op{.logits = gradient,
                            .targets = targets,
                            .losses = losses,
                            .vocab_size = V,
                            .want_gradient = true,
                            .cap = cap,
                            .gradient_scale = make.scalar(0.5f),
                            .weights = weights,
                            .z_loss = z,
                            .label_smoothing = s};
      cpu.run(op);
      for (int64_t n = 0; n < N; ++n) {
        const int32_t target = targets.as<int32_t>()[n];
        if (target == kNoTarget) {
          expect_row(gradient, n, Row(V, 0.0));
          EXPECT_EQ(floats(losses)[n], 0);
          continue;
        }
        const Row l = row(capped, n);
        const double lse = log_sum_exp(l), w = floats(weights)[n];
        double mean = 0;
        for (const double x : l) mean += x / V;
        expect_loss(losses, n,
                    w * (lse - (1 - s) * l[static_cast<size_t>(target)] - s * mean + z * lse * lse));
        Row want;
        for (int64_t v = 0; v < V; ++v) {
          const double x = l[static_cast<size_t>(v)], derivative = cap > 0 ? 1 - x * x / (cap * cap) : 1;
          const double of_target = v == target ? 1 - s : 0;
          want.push_back(0.5 * w * derivative * ((1 + 2 * z * lse) * std::exp(x - lse) - of_target - s / V));
        }
        expect_row(gradient, n, want);
      }
      CrossEntropy again = op;  // the same loss without a gradient
      again.logits = make.copy_of(logits), again.losses = make.poisoned({N}), again.want_gradient = false;
      cpu.run(again);
      for (int64_t n = 0; n < N; ++n) EXPECT_EQ(floats(again.losses)[n], floats(losses)[n]);
    }
}

// The loss of a row: `events` has the event of each token, and `teacher` the logits of each of them over t
struct DistilledRow {
  std::vector<size_t> events;
  Row teacher;
  double temperature, cross_entropy, reverse;

  // Logarithms of the probabilities of events
  Row of_student(const Row& logits) const {
    Row sums(teacher.size());
    const double most = *std::ranges::max_element(logits);
    double all = 0;
    for (size_t v = 0; v < logits.size(); ++v) {
      const double e = std::exp((logits[v] - most) / temperature);
      sums[events[v]] += e, all += e;
    }
    for (double& sum : sums) sum = std::log(sum / all);
    return sums;
  }
  double loss(const Row& logits, int32_t target) const {
    const Row own = of_student(logits);
    const double lse = log_sum_exp(teacher);
    double forward = 0, backward = 0;
    for (size_t i = 0; i < teacher.size(); ++i) {
      const double its = teacher[i] - lse;
      forward += std::exp(its) * (its - own[i]);
      backward += std::exp(own[i]) * (own[i] - its);
    }
    const double plain = log_sum_exp(logits) - logits[static_cast<size_t>(target)];
    return cross_entropy * plain +
           (1 - cross_entropy) * temperature * temperature * ((1 - reverse) * forward + reverse * backward);
  }
  Row gradient(Row logits, int32_t target, double scale) const {
    constexpr double kStep = 1e-4;
    Row found;
    for (double& logit : logits) {
      const double at = logit;
      logit = at + kStep;
      const double more = loss(logits, target);
      logit = at - kStep;
      found.push_back(scale * (more - loss(logits, target)) / (2 * kStep));
      logit = at;
    }
    return found;
  }
};

struct DistillationShares {
  float temperature, cross_entropy, reverse;
};
constexpr DistillationShares kShares[] = {{1, 0, 0}, {2, 0, 0},    {0.5, 0.3f, 0},   {3, 1, 0},
                                          {1, 0, 1}, {2, 0, 0.4f}, {0.5, 0.3f, 0.7f}};

TEST_F(LossExtras, DistillationIsItsFormula) {
  constexpr int64_t kTeachers = 72;
  const Tensor teacher = make.normal({N, kTeachers}, 2);
  targets.as<int32_t>()[5] = kNoTarget;
  for (const auto& [t, c, r] : kShares)
    for (const bool is_teacher : {false, true}) {
      SCOPED_TRACE(fmt::format("temperature {}, cross entropy {}, reverse {}", t, c, r));
      const Tensor of = make.copy_of(logits);
      for (int64_t n = 0; is_teacher && n < N; ++n)
        std::copy_n(floats(teacher).begin() + n * kTeachers, kPadded, floats(of).begin() + n * kPadded);
      const Tensor student = make.copy_of(of);
      cpu.run(Distillation{.logits = of,
                           .teacher = teacher,
                           .targets = targets,
                           .losses = losses,
                           .vocab_size = V,
                           .want_gradient = true,
                           .temperature = t,
                           .cross_entropy = c,
                           .reverse = r,
                           .gradient_scale = make.scalar(0.5f),
                           .weights = weights});
      for (int64_t n = 0; n < N; ++n) {
        const int32_t target = targets.as<int32_t>()[n];
        if (target == kNoTarget) {
          expect_row(of, n, Row(V, 0.0));
          EXPECT_EQ(floats(losses)[n], 0);
          continue;
        }
        DistilledRow row{.events = std::vector<size_t>(V),
                         .teacher = this->row(teacher, n, 1 / static_cast<double>(t)),
                         .temperature = t,
                         .cross_entropy = c,
                         .reverse = r};
        std::iota(row.events.begin(), row.events.end(), size_t{0});
        const double w = floats(weights)[n];
        const Row own = this->row(student, n);
        if (is_teacher && c == 0) {
          EXPECT_NEAR(floats(losses)[n], 0, 1e-6);
        }
        expect_loss(losses, n, w * row.loss(own, target));
        if (!is_teacher) expect_row(of, n, row.gradient(own, target, 0.5 * w));
      }
    }
}

// Of a teacher of which K logits are known, all others are one event.
TEST_F(LossExtras, DistillationFromTheLargestLogitsIsItsFormula) {
  const Tensor teacher = make.normal({N, kPadded}, 2);
  targets.as<int32_t>()[5] = kNoTarget;
  for (const int64_t K : {int64_t{1}, int64_t{7}, V - 1, V})
    for (const auto& [t, c, r] : kShares) {
      SCOPED_TRACE(fmt::format("{} logits, temperature {}, cross entropy {}, reverse {}", K, t, c, r));
      const Tensor of = make.copy_of(logits), ids = make.empty({N, K}, DType::kI32),
                   values = make.poisoned({N, K + 1}), whole = make.copy_of(logits),
                   whole_losses = make.poisoned({N});
      cpu.run(
          LargestLogits{.logits = teacher, .ids = ids, .values = values, .vocab_size = V, .temperature = t});
      Distillation op{.logits = of,
                      .targets = targets,
                      .losses = losses,
                      .vocab_size = V,
                      .want_gradient = true,
                      .temperature = t,
                      .cross_entropy = c,
                      .reverse = r,
                      .gradient_scale = make.scalar(0.5f),
                      .weights = weights,
                      .largest_ids = ids,
                      .largest = values};
      cpu.run(op);
      op.logits = whole, op.losses = whole_losses, op.teacher = teacher, op.largest_ids = op.largest = {};
      cpu.run(op);
      for (int64_t n = 0; n < N; ++n) {
        const int32_t target = targets.as<int32_t>()[n];
        if (target == kNoTarget) {
          expect_row(of, n, Row(V, 0.0));
          continue;
        }
        const auto others = static_cast<size_t>(K);
        DistilledRow row{.events = std::vector<size_t>(V, others),
                         .teacher = Row(others),
                         .temperature = t,
                         .cross_entropy = c,
                         .reverse = r};
        const Row its = this->row(teacher, n, 1 / static_cast<double>(t));
        for (int64_t k = 0; k < K; ++k) {
          const auto v = static_cast<size_t>(ids.as<int32_t>()[n * K + k]);
          row.events[v] = static_cast<size_t>(k), row.teacher[static_cast<size_t>(k)] = its[v];
        }
        Row rest;
        for (size_t v = 0; v < its.size(); ++v)
          if (row.events[v] == others) rest.push_back(its[v]);
        if (!rest.empty()) row.teacher.push_back(log_sum_exp(rest));
        const double w = floats(weights)[n];
        const Row own = this->row(logits, n);
        expect_loss(losses, n, w * row.loss(own, target));
        expect_row(of, n, row.gradient(own, target, 0.5 * w));
        if (w > 0 && c == 0) {
          EXPECT_LE(floats(losses)[n], floats(whole_losses)[n] * (1 + 1e-6f));
        }
        if (K < V) continue;
        expect_loss(losses, n, static_cast<double>(floats(whole_losses)[n]));
        expect_row(of, n, this->row(whole, n));
      }
    }
}

TEST_F(LossExtras, LargestLogitsAreThoseOfASort) {
  for (int64_t n = 0; n < N; ++n) {  // equal ones, also around the last that is taken
    for (const int64_t v : {4, 9, 17, 33}) floats(logits)[n * kPadded + v] = n % 2 ? 100.0f : 0.25f;
    for (const int64_t v : {2, 60}) floats(logits)[n * kPadded + v] = -50.0f;
    for (int64_t v = V; v < kPadded; ++v) floats(logits)[n * kPadded + v] = 1000;
  }
  for (const int64_t K : {int64_t{1}, int64_t{2}, int64_t{5}, int64_t{30}, V - 1, V}) {
    const Tensor ids = make.empty({N, K}, DType::kI32), values = make.poisoned({N, K + 1});
    cpu.run(
        LargestLogits{.logits = logits, .ids = ids, .values = values, .vocab_size = V, .temperature = 1.5f});
    for (int64_t n = 0; n < N; ++n) {
      const Row own = row(logits, n);
      std::vector<int32_t> order(V);
      std::iota(order.begin(), order.end(), 0);
      std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
        return own[static_cast<size_t>(a)] > own[static_cast<size_t>(b)];
      });
      Row others;
      for (size_t i = static_cast<size_t>(K); i < order.size(); ++i)
        others.push_back(own[static_cast<size_t>(order[i])] / 1.5);
      order.resize(static_cast<size_t>(K));
      std::ranges::sort(order);
      for (int64_t k = 0; k < K; ++k) {
        EXPECT_EQ(ids.as<int32_t>()[n * K + k], order[static_cast<size_t>(k)]) << n;
        EXPECT_EQ(floats(values)[n * (K + 1) + k],
                  static_cast<float>(own[static_cast<size_t>(order[static_cast<size_t>(k)])]));
      }
      const float found = floats(values)[n * (K + 1) + K];
      if (others.empty()) {
        EXPECT_EQ(found, -INFINITY);
      } else {
        EXPECT_NEAR(found, log_sum_exp(others), 1e-6 * (1 + std::abs(log_sum_exp(others))));
      }
    }
  }
}

// The chosen documents become desirable and undesirable answers in turn, the rejected ones mismatched.
void label_answers(const Tensor& kinds) {
  bool desirable = true;
  auto* all = kinds.as<int32_t>();
  for (int64_t n = 0; n < kinds.numel(); ++n) {
    if (all[n] == static_cast<int32_t>(DocumentKind::kRejected))
      all[n] = static_cast<int32_t>(DocumentKind::kMismatched);
    if (all[n] != static_cast<int32_t>(DocumentKind::kChosen)) continue;
    const bool goes_on = n % kinds.shape[1] > 0 && is_first_of_pair(static_cast<DocumentKind>(all[n - 1]));
    if (!goes_on) desirable = !desirable;
    all[n] = static_cast<int32_t>(desirable ? DocumentKind::kDesirable : DocumentKind::kUndesirable);
  }
}

// Two sequences: a pair, another document and padding; two pairs. One answer is all that a side has.
TEST_F(LossExtras, WeightsOfPairsAreDerivativesOfTheirLosses) {
  constexpr int64_t T = 12, kRows = 2 * T;
  const std::vector<std::vector<std::pair<int, DocumentKind>>> sequences = {{{4, DocumentKind::kChosen},
                                                                             {3, DocumentKind::kRejected},
                                                                             {2, DocumentKind::kPlain},
                                                                             {3, DocumentKind::kPlain}},
                                                                            {{1, DocumentKind::kChosen},
                                                                             {2, DocumentKind::kRejected},
                                                                             {5, DocumentKind::kChosen},
                                                                             {4, DocumentKind::kRejected}}};
  const Tensor documents = make.empty({2, T, 2}, DType::kI32), kinds = make.empty({2, T}, DType::kI32),
               ids = make.tokens({kRows}, 9), own = make.normal({kRows}, 0.5, 2),
               reference = make.normal({kRows}, 0.5, 2), row_weights = make.poisoned({kRows}),
               figures = make.poisoned({PreferenceFigures::kCount, kRows});
  for (size_t b = 0; b < 2; ++b) {
    int begin = 0;
    for (const auto& [length, kind] : sequences[b]) {
      for (int t = begin; t < begin + length; ++t) {
        const int64_t n = static_cast<int64_t>(b) * T + t;
        documents.as<int32_t>()[2 * n] = begin, documents.as<int32_t>()[2 * n + 1] = begin + length;
        kinds.as<int32_t>()[n] = static_cast<int32_t>(kind);
      }
      begin += length;
    }
  }
  for (const int64_t n : {0, 4, 15, 16}) ids.as<int32_t>()[n] = kNoTarget;  // prompts
  const Tensor divergence = make.empty({1}), scale = make.empty({1}), of_pairs = make.poisoned({kRows});
  for (const int64_t n : {0, 12, 15}) floats(of_pairs)[n] = n < T ? 2.5f : 0.25f;  // of others it is not read
  Tensor pair_weights;
  for (const PreferenceRule& rule :
       {PreferenceRule{.kind = PreferenceKind::kDpo, .beta = 0.3, .label_smoothing = 0.2},
        PreferenceRule{.kind = PreferenceKind::kDpo, .beta = 0.3, .cross_entropy = 0.5},
        PreferenceRule{.kind = PreferenceKind::kIpo, .beta = 0.2},
        PreferenceRule{.kind = PreferenceKind::kSimpo, .beta = 2, .label_smoothing = 0.1, .gamma = 0.4},
        PreferenceRule{.kind = PreferenceKind::kOrpo, .beta = 0.4},
        PreferenceRule{.kind = PreferenceKind::kKto, .beta = 0.3, .desirable = 1.5, .undesirable = 0.7}}) {
    if (rule.has_labels()) label_answers(kinds);
    const auto loss = [&] {
      cpu.run(PreferenceLoss{.documents = documents,
                             .kinds = kinds,
                             .targets = ids,
                             .losses = own,
                             .reference = rule.needs_reference() ? reference : Tensor{},
                             .rule = rule,
                             .divergence = rule.has_labels() ? divergence : Tensor{},
                             .gradient_scale = rule.has_labels() ? scale : Tensor{},
                             .pair_weights = pair_weights,
                             .weights = row_weights,
                             .figures = figures});
      double sum = 0;
      for (int64_t n = 0; n < kRows; ++n) sum += static_cast<double>(floats(figures)[n]);
      return sum;
    };
    floats(divergence)[0] = 0.9f, floats(scale)[0] = 0.5f;
    pair_weights = {};
    loss();
    const Tensor plain = make.copy_of(row_weights), of_plain = make.copy_of(figures);
    pair_weights = of_pairs;
    loss();
    const Tensor found = make.copy_of(row_weights);
    for (int64_t n = 0; n < kRows; ++n) {
      const float w = n < T ? 2.5f : 0.25f;
      EXPECT_FLOAT_EQ(floats(found)[n], w * floats(plain)[n]);
      for (int i = 0; i < PreferenceFigures::kCount; ++i) {
        const bool is_weighed = i == 0 || i == PreferenceFigures::kDivergence;
        EXPECT_FLOAT_EQ(floats(figures)[i * kRows + n],
                        (is_weighed ? w : 1) * floats(of_plain)[i * kRows + n]);
      }
    }
    for (const int64_t n : {0, 12, 15}) EXPECT_NE(floats(figures)[n], 0);
    EXPECT_EQ(floats(figures)[1], 0);
    for (int64_t n = 0; n < kRows; ++n) {
      const float at = floats(own)[n];
      constexpr float kStep = 0.01f;
      floats(own)[n] = at + kStep;
      const double more = loss();
      floats(own)[n] = at - kStep;
      const double less = loss();
      floats(own)[n] = at;
      const bool counts = ids.as<int32_t>()[n] != kNoTarget;
      EXPECT_NEAR((more - less) / (2 * static_cast<double>(kStep)),
                  counts ? static_cast<double>(floats(found)[n]) : 0.0, 2e-4)
          << static_cast<int>(rule.kind) << ", row " << n;
      if (n >= 7 && n < 12) {
        EXPECT_EQ(floats(found)[n], 0);
      }
    }
  }
}

TEST_F(LossExtras, WrongArgumentsAreRefused) {
  CrossEntropy op{
      .logits = logits, .targets = targets, .losses = losses, .vocab_size = V, .want_gradient = false};
  op.label_smoothing = 1;
  EXPECT_THROW(cpu.run(op), std::exception);
  op.label_smoothing = 0, op.z_loss = -1;
  EXPECT_THROW(cpu.run(op), std::exception);
  Distillation distillation{.logits = logits,
                            .teacher = make.normal({N, V - 1}),
                            .targets = targets,
                            .losses = losses,
                            .vocab_size = V,
                            .want_gradient = false};
  EXPECT_THROW(cpu.run(distillation), std::exception);
  distillation.teacher = logits, distillation.temperature = 0;
  EXPECT_THROW(cpu.run(distillation), std::exception);
  distillation.temperature = 1, distillation.reverse = 1.5f;
  EXPECT_THROW(cpu.run(distillation), std::exception);
  distillation.reverse = 0, distillation.largest_ids = make.empty({N, 3}, DType::kI32);
  EXPECT_THROW(cpu.run(distillation), std::exception);  // two teachers
  distillation.teacher = {}, distillation.largest = make.normal({N, 3});
  EXPECT_THROW(cpu.run(distillation), std::exception);  // there is nothing of the other tokens
  distillation.largest = make.normal({N, 4});
  std::fill_n(distillation.largest_ids.as<int32_t>(), 3 * N, static_cast<int32_t>(V));
  EXPECT_THROW(cpu.run(distillation), std::exception);
  EXPECT_THROW(cpu.run(LargestLogits{.logits = logits,
                                     .ids = make.empty({N, V + 1}, DType::kI32),
                                     .values = make.empty({N, V + 2}),
                                     .vocab_size = V}),
               std::exception);
}

}  // namespace
}  // namespace tessera::testing
