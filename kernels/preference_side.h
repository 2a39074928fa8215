// On the host: finds the pairs in sequences, and adds up the losses of a document's rows. Kernels do this
// with several threads: preference.cu.
#pragma once

#include <cstdint>

#include "kernels/base/check.h"
#include "kernels/base/documents.h"
#include "kernels/base/no_target.h"
#include "kernels/preference.h"

namespace tessera {

// Calls on_pair(first, middle, end) for each pair in the N rows of sequences of T tokens: the rows where its
// two documents begin, and where the second one ends.
template <class OnPair>
void for_each_pair(const int32_t* documents, const int32_t* kinds, int64_t N, int64_t T,
                   const OnPair& on_pair) {
  for (int64_t n = 0; n < N; ++n) {
    if (!begins_pair(documents, kinds, n, T)) continue;
    const int64_t middle = end_of_document(documents, n, T);
    const auto second = second_after(static_cast<DocumentKind>(kinds[n]));
    check(middle < n - n % T + T && kinds[middle] == static_cast<int32_t>(second),
          "no second document follows the first one of the pair at row {}", n);
    on_pair(n, middle, end_of_document(documents, middle, T));
  }
}

struct PairRows {
  const int32_t* targets;
  const float *losses, *reference;  // cross entropies of rows, by the model and by the reference (or null)
  const float* stored = nullptr;    // see PreferenceLoss; null: none
};
// The document that has the rows from `begin` to `end`
inline PreferenceSide preference_side(const PairRows& rows, int64_t begin, int64_t end) {
  PreferenceSide side;
  if (rows.stored) side.reference = stored_reference(rows.stored, begin);
  for (int64_t n = begin; n < end; ++n) {
    if (rows.targets[n] == kNoTarget) continue;
    side.logp -= static_cast<double>(rows.losses[n]);
    if (rows.reference) side.reference -= static_cast<double>(rows.reference[n]);
    side.tokens += 1;
  }
  return side;
}

}  // namespace tessera
