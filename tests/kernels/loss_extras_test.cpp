// What a loss may have besides cross entropy: z-loss, label smoothing, a teacher, pairs. On the CPU, against
// formulas in fp64.
#include <cmath>

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

TEST_F(LossExtras, DistillationIsItsFormula) {
  constexpr int64_t kTeachers = 72;
  const Tensor teacher = make.normal({N, kTeachers}, 2);
  targets.as<int32_t>()[5] = kNoTarget;
  for (const auto& [t, c] : {std::pair(1.0f, 0.0f), {2.0f, 0.0f}, {0.5f, 0.3f}, {3.0f, 1.0f}})
    for (const bool is_teacher : {false, true}) {
      SCOPED_TRACE(fmt::format("temperature {}, cross entropy {}", t, c));
      const Tensor gradient = make.copy_of(is_teacher ? teacher : logits);
      const Tensor of = is_teacher ? make.poisoned({N, kPadded}) : gradient;
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
                           .gradient_scale = make.scalar(0.5f),
                           .weights = weights});
      for (int64_t n = 0; n < N; ++n) {
        const int32_t target = targets.as<int32_t>()[n];
        if (target == kNoTarget) {
          expect_row(of, n, Row(V, 0.0));
          continue;
        }
        const Row plain = row(student, n), own = row(student, n, 1.0 / t), its = row(teacher, n, 1.0 / t);
        const double w = floats(weights)[n], a = log_sum_exp(plain), b = log_sum_exp(own),
                     d = log_sum_exp(its);
        double divergence = 0;
        Row want;
        for (size_t v = 0; v < V; ++v) {
          const double p = std::exp(its[v] - d), q = std::exp(own[v] - b);
          divergence += p * (its[v] - d - own[v] + b);
          const double of_target = std::exp(plain[v] - a) - (static_cast<int32_t>(v) == target ? 1 : 0);
          want.push_back(0.5 * w * (c * of_target + (1 - c) * t * (q - p)));
        }
        if (is_teacher) {
          EXPECT_NEAR(divergence, 0, 1e-12);
        }
        expect_loss(losses, n,
                    w * (c * (a - plain[static_cast<size_t>(target)]) + (1 - c) * t * t * divergence));
        if (!is_teacher) expect_row(of, n, want);
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
  const Tensor divergence = make.empty({1}), scale = make.empty({1});
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
                             .weights = row_weights,
                             .figures = figures});
      double sum = 0;
      for (int64_t n = 0; n < kRows; ++n) sum += static_cast<double>(floats(figures)[n]);
      return sum;
    };
    floats(divergence)[0] = 0.9f, floats(scale)[0] = 0.5f;
    loss();
    const Tensor found = make.copy_of(row_weights);
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
}

}  // namespace
}  // namespace tessera::testing
