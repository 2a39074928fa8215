#include "train/session/pair_figures.h"

#include <algorithm>

#include "kernels/preference_side.h"

namespace tessera {

std::vector<float> as_two_floats(std::span<const double> values) {
  std::vector<float> pairs;
  pairs.reserve(2 * values.size());
  for (const double value : values) {
    const auto first = static_cast<float>(value);
    pairs.insert(pairs.end(), {first, static_cast<float>(value - static_cast<double>(first))});
  }
  return pairs;
}

std::vector<PreferencePair> pairs_in(const PairLosses& of) {
  const SequencesView& sequences = of.sequences;
  const bool needs = of.rule.needs_reference() && of.reference.empty();
  check(!needs || sequences.log_probs.size() == sequences.targets.size(),
        "the loss needs a reference, and there are neither its losses nor its log-probabilities");
  const std::vector<float> stored = needs ? as_two_floats(sequences.log_probs) : std::vector<float>();
  const PairRows rows{sequences.targets.data(), of.losses.data(),
                      of.reference.empty() ? nullptr : of.reference.data(),
                      stored.empty() ? nullptr : stored.data()};
  std::vector<PreferencePair> pairs;
  for_each_pair(sequences.documents.data(), sequences.kinds.data(), std::ssize(sequences.kinds), of.T,
                [&](int64_t first, int64_t middle, int64_t end) {
                  const int32_t kind = sequences.kinds[static_cast<size_t>(first)];
                  pairs.push_back({.chosen = preference_side(rows, first, middle),
                                   .rejected = preference_side(rows, middle, end),
                                   .is_desirable = kind != static_cast<int32_t>(DocumentKind::kUndesirable)});
                });
  return pairs;
}

std::vector<double> pair_figures(const PreferenceRule& rule, std::vector<PreferencePair> pairs) {
  if (rule.has_labels()) {
    double sum = 0;
    for (const PreferencePair& pair : pairs) sum += pair.rejected.logp - pair.rejected.reference;
    for (PreferencePair& pair : pairs)
      pair.divergence = std::max(0.0, sum / static_cast<double>(pairs.size()));
  }
  std::vector<double> sums(PreferenceFigures::kCount);
  for (const PreferencePair& pair : pairs) {
    const PreferenceFigures found = preference_figures(rule, pair);
    for (int i = 0; i < PreferenceFigures::kCount; ++i) sums[static_cast<size_t>(i)] += found.at(i);
  }
  return sums;
}

std::vector<double> mean_figures(std::vector<double> sums, double pairs, double weight) {
  for (size_t i = 0; i < sums.size(); ++i) {
    const bool is_weighed = i == 0 || i == PreferenceFigures::kDivergence;
    const double over = is_weighed ? weight : pairs;
    if (over > 0) sums[i] /= over;
  }
  for (const size_t side : {0, 1})
    if (const double share = sums[6 + side]; share > 0)
      for (const size_t figure : {1 + side, 3 + side}) sums[figure] /= share;
  return sums;
}

}  // namespace tessera
