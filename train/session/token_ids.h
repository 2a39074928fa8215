// Token ids, and where documents lie, from the host to the device.
#pragma once

#include <span>
#include <vector>

#include "data/sequences.h"
#include "kernels/stream.h"

namespace tessera {

enum class Ids { kTokens, kTargets };

// As many ids as `to` has elements (a planned tensor takes any number). Error: another number, or an id
// outside the vocabulary; a target may be kNoTarget.
void check_ids(Ids which, std::span<const int32_t> ids, int64_t vocab_size, const Tensor& to);

// Error: a token outside its document, a document that is not the same for all its tokens; any documents,
// unless they are planned.
void check_documents(std::span<const int32_t> documents, int64_t T, bool planned);

// The values of `to`, [.., T, 2], of `documents` of Sequences of T tokens; without any, a sequence is one
// document. They lie in `documents` or in `made`. Without a `to` there must be none. Error: another number,
// and as check_documents().
std::span<const int32_t> checked_documents(std::span<const int32_t> documents, int64_t T, const Tensor& to,
                                           std::vector<int32_t>& made);

// The place of each token in its document
std::vector<int32_t> positions_of(std::span<const int32_t> documents, int64_t T);

// For each token whether a target of its document counts; of padding none does. Without documents all are 1.
std::vector<int32_t> rows_with_targets(const SequencesView& sequences, int64_t T);

// The same, and copied to the device before they return
void copy_ids(const Stream& stream, Ids which, std::span<const int32_t> ids, int64_t vocab_size,
              const Tensor& to);
struct DocumentTensors {
  Tensor documents, positions;  // [B, T, 2] [B, T]; both or none
};
void copy_documents(const Stream& stream, std::span<const int32_t> documents, int64_t T,
                    const DocumentTensors& to);

}  // namespace tessera
