// The figures of a loss of pairs, computed on the host. An evaluation needs this because its forward returns
// only losses of tokens.
#pragma once

#include <span>
#include <vector>

#include "data/sequences.h"
#include "kernels/preference.h"

namespace tessera {

// `losses` and `reference` are the cross entropy of each token, [count, T]. `reference` is empty if the rule
// needs no reference, or if the sequences hold its log-probabilities.
struct PairLosses {
  const PreferenceRule& rule;
  const SequencesView& sequences;
  int64_t T;
  std::span<const float> losses, reference;
};
// All pairs, in order, without PreferencePair::divergence
std::vector<PreferencePair> pairs_in(const PairLosses& of);

// The sums over `pairs` of PreferenceFigures::at(). For kto, the divergence is computed from these pairs.
std::vector<double> pair_figures(const PreferenceRule& rule, std::vector<PreferencePair> pairs);
// The means, from sums over so many pairs. Figures of chosen or rejected answers are means over the pairs
// that have such an answer. `weight`: the sum of the pairs' weights
std::vector<double> mean_figures(std::vector<double> sums, double pairs, double weight);

// [N, 2]: each value as two floats, the value rounded and the remainder
std::vector<float> as_two_floats(std::span<const double> values);

}  // namespace tessera
