// Copies token ids, and the places of documents, from the host to the device.
#pragma once

#include <span>
#include <vector>

#include "data/sequences.h"
#include "kernels/preference.h"
#include "kernels/stream.h"

namespace tessera {

enum class Ids { kTokens, kTargets };

// There are as many ids as `to` has elements (a planned tensor takes any number). A target may be kNoTarget.
// Error: another number of ids, or an id outside the vocabulary.
void check_ids(Ids which, std::span<const int32_t> ids, int64_t vocab_size, const Tensor& to);

// Error: a token lies outside its document; the tokens of a document do not all name the same one; there are
// documents, although the run was planned without.
void check_documents(std::span<const int32_t> documents, int64_t T, bool planned);

// The values of `to`, [.., T, 2], from the `documents` of Sequences of T tokens; without documents each
// sequence is one document. The result points into `documents` or `made`. If there is no `to`, there must be
// no documents. Error: another number of values, and as check_documents().
std::span<const int32_t> checked_documents(std::span<const int32_t> documents, int64_t T, const Tensor& to,
                                           std::vector<int32_t>& made);

// The position of each token in its document
std::vector<int32_t> positions_of(std::span<const int32_t> documents, int64_t T);

// For each token, whether a target of its document counts; 0 for padding. Without documents all are 1.
std::vector<int32_t> rows_with_targets(const SequencesView& sequences, int64_t T);

// Error: the first document of a pair is not followed by its second one in the same sequence, or the
// documents are not of the kind that the loss takes: pairs, or answers with labels.
void check_pairs(const SequencesView& sequences, int64_t T, const PreferenceRule& rule);

// These do the same, and copy the result to the device before they return.
void copy_ids(const Stream& stream, Ids which, std::span<const int32_t> ids, int64_t vocab_size,
              const Tensor& to);
struct DocumentTensors {
  Tensor documents, positions;  // [B, T, 2] [B, T]; both or none
};
void copy_documents(const Stream& stream, std::span<const int32_t> documents, int64_t T,
                    const DocumentTensors& to);

}  // namespace tessera
