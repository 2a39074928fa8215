// Several documents may share a sequence. `documents` [B, T, 2] says for every token where its document
// begins and where it ends, counted in tokens of the sequence. Null: a sequence is one document.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

// The role of a document in the loss of a training. A pair is two documents, one directly after the other: a
// chosen and a rejected one, or an answer (desirable or undesirable) and its mismatched document, which is
// the same prompt with the answer to another prompt.
enum class DocumentKind : int32_t {
  kPlain = 0,
  kChosen = 1,
  kRejected = 2,
  kDesirable = 3,
  kUndesirable = 4,
  kMismatched = 5
};
TESSERA_HOST_DEVICE constexpr bool is_first_of_pair(DocumentKind kind) {
  return kind == DocumentKind::kChosen || kind == DocumentKind::kDesirable ||
         kind == DocumentKind::kUndesirable;
}
TESSERA_HOST_DEVICE constexpr DocumentKind second_after(DocumentKind first) {
  return first == DocumentKind::kChosen ? DocumentKind::kRejected : DocumentKind::kMismatched;
}

// Whether token n = b T + t is the first token of a pair; `kinds` is [B, T].
template <class Int>
TESSERA_HOST_DEVICE bool begins_pair(const int32_t* documents, const int32_t* kinds, Int n, Int T) {
  return is_first_of_pair(static_cast<DocumentKind>(kinds[n])) &&
         documents[2 * static_cast<int64_t>(n)] == static_cast<int32_t>(n % T);
}
// Where the document of token n ends. Tokens are counted over all sequences.
template <class Int>
TESSERA_HOST_DEVICE Int end_of_document(const int32_t* documents, Int n, Int T) {
  return n - n % T + static_cast<Int>(documents[2 * static_cast<int64_t>(n) + 1]);
}

// The position of token n = b T + t within its document
template <class Int>
TESSERA_HOST_DEVICE Int position_of(const int32_t* documents, Int n, Int T) {
  const Int t = n % T;
  return documents ? t - static_cast<Int>(documents[2 * static_cast<int64_t>(n)]) : t;
}
// The position of token n. `positions` [B, T] has it for every token; null: it is the place in the sequence.
// When sequences are continued (see Caches in ops.h), `starts` [B] is given instead. Idle sequences: 0
template <class Int>
TESSERA_HOST_DEVICE Int given_position(const int32_t* positions, const int32_t* starts, Int n, Int T) {
  if (positions) return static_cast<Int>(positions[n]);
  if (!starts) return n % T;
  const int32_t start = starts[n / T];
  return start < 0 ? 0 : static_cast<Int>(start) + n % T;
}

}  // namespace tessera
