// The figures of a loss of pairs on the host: of an evaluation, whose losses come without them.
#pragma once

#include <span>
#include <vector>

#include "data/sequences.h"
#include "kernels/preference.h"

namespace tessera {

// The sums over all pairs of PreferenceFigures::at(). `losses` and `reference` are the cross entropy of each
// token, [count, T]. `reference` is empty where the rule needs none, or the sequences have its log-probs.
struct PairLosses {
  const PreferenceRule& rule;
  const SequencesView& sequences;
  int64_t T;
  std::span<const float> losses, reference;
};
std::vector<double> pair_figures(const PairLosses& of);

// [N, 2]: each value as a float and what that leaves
std::vector<float> as_two_floats(std::span<const double> values);

}  // namespace tessera
