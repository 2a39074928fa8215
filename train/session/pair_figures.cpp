#include "train/session/pair_figures.h"

#include "kernels/preference_side.h"

namespace tessera {

std::vector<double> pair_figures(const PairLosses& of) {
  const SequencesView& sequences = of.sequences;
  const PairRows rows{sequences.targets.data(), of.losses.data(),
                      of.reference.empty() ? nullptr : of.reference.data()};
  const auto end_at = [&](int64_t n) {
    return n - n % of.T + sequences.documents[static_cast<size_t>(2 * n + 1)];
  };
  std::vector<double> sums(PreferenceFigures::kCount);
  for (int64_t n = 0; n < std::ssize(sequences.kinds); ++n) {
    if (!begins_pair(sequences, n, of.T)) continue;
    const int64_t middle = end_at(n);
    const PreferenceFigures found = preference_figures(of.rule, preference_side(rows, n, middle),
                                                       preference_side(rows, middle, end_at(middle)));
    for (int i = 0; i < PreferenceFigures::kCount; ++i) sums[static_cast<size_t>(i)] += found.at(i);
  }
  return sums;
}

}  // namespace tessera
