// The losses of pairs of documents, computed from the log-probabilities of their tokens that count. The host
// and devices share these formulas. A pair is a chosen and a rejected document. For kto it is an answer,
// desirable or not, and a mismatched document: the same prompt with the answer to another prompt.
//   c, r    log-probability of the chosen and of the rejected document, a sum over its tokens that count
//   c', r'  the same by the reference;  n, m the numbers of these tokens;  b = beta;  L(x) = -log sigmoid(x)
//   dpo     d = b ((c - c') - (r - r')),  ((1 - s) L(d) - s L(-d)) / (1 - 2 s) with the label smoothing s
//           (robust DPO; s = 0: L(d))
//   ipo     ((c - c') / n - (r - r') / m - 1 / (2 b))^2
//   simpo   d = b (c / n - r / m) - gamma,  (1 - s) L(d) + s L(-d)
//   orpo    -c / n + b L(o),  o = log odds of c / n less those of r / m,  odds(p) = p / (1 - p)
//   kto     c belongs to the answer. z = max(0, the mean of m - m' over the step's mismatched documents),
//           where m and m' are their log-probabilities by the model and by the reference; no gradient.
//           w sigmoid(-h): a desirable answer has h = b ((c - c') - z) and w = desirable, an undesirable one
//           h = -b ((c - c') - z) and w = undesirable
// `cross_entropy` times -c / n is added to the first three. Rewards are only for reports: b (c - c') with a
// reference, and b c / n without one.
// Rafailov et al., arXiv 2305.18290; Chowdhury et al., arXiv 2403.00409; Azar et al., arXiv 2310.12036; Meng
// et al., arXiv 2405.14734; Hong et al., arXiv 2403.07691; Ethayarajh et al., arXiv 2402.01306.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

enum class PreferenceKind : uint8_t { kDpo, kIpo, kSimpo, kOrpo, kKto };

struct PreferenceRule {
  PreferenceKind kind = PreferenceKind::kDpo;
  double beta = 0.1, label_smoothing = 0, gamma = 0.5, cross_entropy = 0;
  double desirable = 1, undesirable = 1;  // weights

  TESSERA_HOST_DEVICE bool needs_reference() const {
    return kind == PreferenceKind::kDpo || kind == PreferenceKind::kIpo || kind == PreferenceKind::kKto;
  }
  // Whether its documents are answers with a label, and mismatched ones
  TESSERA_HOST_DEVICE bool has_labels() const { return kind == PreferenceKind::kKto; }
};

// A document of a pair
struct PreferenceSide {
  double logp = 0, reference = 0;  // log-probability by the model, and by the reference: sums over tokens
  double tokens = 0;               // the number of tokens that count
};

// The sum that PreferenceLoss::stored has at the first row of a document
TESSERA_HOST_DEVICE inline double stored_reference(const float* stored, int64_t row) {
  return static_cast<double>(stored[2 * row]) + static_cast<double>(stored[2 * row + 1]);
}
// z of kto, from PreferenceLoss::divergence and gradient_scale
TESSERA_HOST_DEVICE inline double mean_divergence(float sum, float scale) {
  return fmax(0.0, static_cast<double>(sum) * static_cast<double>(scale));
}

// The results for a pair. For kto the label says whether the answer counts as chosen or as rejected; the
// figures of the other are 0.
struct PreferenceFigures {
  static constexpr int kCount = 9;
  static constexpr int kDivergence = 8;  // the index of `divergence` in at()
  double loss = 0, chosen_reward = 0, rejected_reward = 0, chosen_logp = 0, rejected_logp = 0;
  double is_right = 0;  // 1: the reward of the chosen document is the higher one; kto: h is above 0
  double has_chosen = 1, has_rejected = 1;
  double divergence = 0;                // kto: m - m' of the mismatched document
  double d_chosen = 0, d_rejected = 0;  // derivatives of the loss with respect to the two sums

  // Multiplies by the weight of the pair what the loss consists of.
  TESSERA_HOST_DEVICE void weigh(double weight) {
    loss *= weight, divergence *= weight, d_chosen *= weight, d_rejected *= weight;
  }

  TESSERA_HOST_DEVICE double at(int i) const {
    const double all[kCount] = {loss,     chosen_reward, rejected_reward, chosen_logp, rejected_logp,
                                is_right, has_chosen,    has_rejected,    divergence};
    return all[i];
  }
};

struct PreferencePair {
  PreferenceSide chosen, rejected;  // kto: the answer and the mismatched document
  bool is_desirable = true;         // kto
  double divergence = 0;            // z of kto
};

namespace preference {

TESSERA_HOST_DEVICE inline double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}
TESSERA_HOST_DEVICE inline double minus_log_sigmoid(double x) {
  return x >= 0 ? log1p(exp(-x)) : log1p(exp(x)) - x;
}
// log(1 - exp(x)) for x < 0; for 0 the value at a number just below it
TESSERA_HOST_DEVICE inline double log_one_minus_exp(double x) {
  constexpr double kLeast = -1e-12;
  if (x > kLeast) x = kLeast;
  return x > -0.6931471805599453 ? log(-expm1(x)) : log1p(-exp(x));
}
// The derivative of x - log_one_minus_exp(x), 1 / (1 - exp(x))
TESSERA_HOST_DEVICE inline double log_odds_slope(double x) {
  constexpr double kLeast = -1e-12;
  if (x > kLeast) x = kLeast;
  return -1 / expm1(x);
}

}  // namespace preference

TESSERA_HOST_DEVICE inline PreferenceFigures kto_figures(const PreferenceRule& rule,
                                                         const PreferencePair& pair) {
  const double b = rule.beta, ratio = pair.chosen.logp - pair.chosen.reference;
  const double sign = pair.is_desirable ? 1 : -1, w = pair.is_desirable ? rule.desirable : rule.undesirable;
  const double h = sign * b * (ratio - pair.divergence), p = preference::sigmoid(-h);
  PreferenceFigures found;
  found.loss = w * p;
  found.d_chosen = -w * sign * b * p * (1 - p);
  (pair.is_desirable ? found.chosen_reward : found.rejected_reward) = b * ratio;
  (pair.is_desirable ? found.chosen_logp : found.rejected_logp) = pair.chosen.logp;
  (pair.is_desirable ? found.has_rejected : found.has_chosen) = 0;
  found.is_right = h > 0 ? 1 : 0;
  found.divergence = pair.rejected.logp - pair.rejected.reference;
  return found;
}

// If a side has no token that counts, its means are 0.
TESSERA_HOST_DEVICE inline PreferenceFigures preference_figures(const PreferenceRule& rule,
                                                                const PreferencePair& pair) {
  using preference::minus_log_sigmoid;
  using preference::sigmoid;
  if (rule.has_labels()) return kto_figures(rule, pair);
  const PreferenceSide &chosen = pair.chosen, &rejected = pair.rejected;
  const double b = rule.beta, s = rule.label_smoothing;
  const double n = chosen.tokens > 0 ? chosen.tokens : 1, m = rejected.tokens > 0 ? rejected.tokens : 1;
  const double c = chosen.logp - chosen.reference, r = rejected.logp - rejected.reference;
  PreferenceFigures found;
  double share = rule.cross_entropy;  // of -c / n
  if (rule.kind == PreferenceKind::kDpo) {
    const double d = b * (c - r), scale = 1 / (1 - 2 * s);
    found.loss = scale * ((1 - s) * minus_log_sigmoid(d) - s * minus_log_sigmoid(-d));
    found.d_chosen = -scale * b * ((1 - s) * sigmoid(-d) + s * sigmoid(d));
    found.d_rejected = -found.d_chosen;
  } else if (rule.kind == PreferenceKind::kIpo) {
    const double d = c / n - r / m - 1 / (2 * b);
    found.loss = d * d;
    found.d_chosen = 2 * d / n;
    found.d_rejected = -2 * d / m;
  } else if (rule.kind == PreferenceKind::kSimpo) {
    const double d = b * (chosen.logp / n - rejected.logp / m) - rule.gamma;
    const double slope = b * (s * sigmoid(d) - (1 - s) * sigmoid(-d));
    found.loss = (1 - s) * minus_log_sigmoid(d) + s * minus_log_sigmoid(-d);
    found.d_chosen = slope / n;
    found.d_rejected = -slope / m;
  } else {
    const double x = chosen.logp / n, y = rejected.logp / m;
    const double odds = (x - preference::log_one_minus_exp(x)) - (y - preference::log_one_minus_exp(y));
    const double slope = -b * sigmoid(-odds);
    found.loss = b * minus_log_sigmoid(odds);
    found.d_chosen = slope * preference::log_odds_slope(x) / n;
    found.d_rejected = -slope * preference::log_odds_slope(y) / m;
    share = 1;
  }
  found.loss -= share * chosen.logp / n;
  found.d_chosen -= share / n;
  found.chosen_reward = b * (rule.needs_reference() ? c : chosen.logp / n);
  found.rejected_reward = b * (rule.needs_reference() ? r : rejected.logp / m);
  found.chosen_logp = chosen.logp;
  found.rejected_logp = rejected.logp;
  found.is_right = found.chosen_reward > found.rejected_reward ? 1 : 0;
  return found;
}

}  // namespace tessera
