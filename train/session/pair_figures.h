// The figures of a loss of pairs on the host: of an evaluation, whose losses come without them.
#pragma once

#include <span>
#include <vector>

#include "data/sequences.h"
#include "kernels/preference.h"

namespace tessera {

// `losses` and `reference` are the cross entropy of each token, [count, T]. `reference` is empty where the
// rule needs none, or the sequences have its log-probs.
struct PairLosses {
  const PreferenceRule& rule;
  const SequencesView& sequences;
  int64_t T;
  std::span<const float> losses, reference;
};
// All pairs, in their order, without PreferencePair::divergence
std::vector<PreferencePair> pairs_in(const PairLosses& of);

// The sums over the pairs of PreferenceFigures::at(). The divergence of kto is that of these pairs.
std::vector<double> pair_figures(const PreferenceRule& rule, std::vector<PreferencePair> pairs);
// The means of sums over so many pairs: of what is chosen and rejected, over the pairs that have it
// `weight`: the sum of the pairs' weights
std::vector<double> mean_figures(std::vector<double> sums, double pairs, double weight);

// [N, 2]: each value as a float and what that leaves
std::vector<float> as_two_floats(std::span<const double> values);

}  // namespace tessera
