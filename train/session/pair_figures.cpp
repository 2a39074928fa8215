#include "train/session/pair_figures.h"

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

std::vector<double> pair_figures(const PairLosses& of) {
  const SequencesView& sequences = of.sequences;
  const std::vector<float> stored =
      of.rule.needs_reference() ? as_two_floats(sequences.log_probs) : std::vector<float>();
  const PairRows rows{sequences.targets.data(), of.losses.data(),
                      of.reference.empty() ? nullptr : of.reference.data(),
                      stored.empty() ? nullptr : stored.data()};
  std::vector<double> sums(PreferenceFigures::kCount);
  for_each_pair(sequences.documents.data(), sequences.kinds.data(), std::ssize(sequences.kinds), of.T,
                [&](int64_t first, int64_t middle, int64_t end) {
                  const PreferenceFigures found = preference_figures(of.rule, preference_side(rows, first, middle),
                                                                     preference_side(rows, middle, end));
                  for (int i = 0; i < PreferenceFigures::kCount; ++i) sums[static_cast<size_t>(i)] += found.at(i);
                });
  return sums;
}

}  // namespace tessera
