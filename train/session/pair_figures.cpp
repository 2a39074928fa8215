#include "train/session/pair_figures.h"

namespace tessera {

std::vector<double> pair_figures(const PairLosses& of) {
  const SequencesView& sequences = of.sequences;
  const auto side_of = [&](int64_t begin, int64_t end) {
    PreferenceSide side;
    for (auto n = static_cast<size_t>(begin); n < static_cast<size_t>(end); ++n) {
      if (sequences.targets[n] == kNoTarget) continue;
      side.logp -= static_cast<double>(of.losses[n]);
      if (!of.reference.empty()) side.reference -= static_cast<double>(of.reference[n]);
      side.tokens += 1;
    }
    return side;
  };
  const auto end_at = [&](int64_t n) {
    return n - n % of.T + sequences.documents[static_cast<size_t>(2 * n + 1)];
  };
  std::vector<double> sums(PreferenceFigures::kCount);
  for (int64_t n = 0; n < std::ssize(sequences.kinds); ++n) {
    if (!begins_pair(sequences, n, of.T)) continue;
    const int64_t middle = end_at(n);
    const PreferenceFigures found =
        preference_figures(of.rule, side_of(n, middle), side_of(middle, end_at(middle)));
    for (int i = 0; i < PreferenceFigures::kCount; ++i) sums[static_cast<size_t>(i)] += found.at(i);
  }
  return sums;
}

}  // namespace tessera
