// Documents that share a sequence: `documents` is [B, T, 2], for every token where its document begins and
// where it ends, counted in tokens of its sequence. Null: a sequence is one document.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

// What a document is to the loss of a training. A pair is a document of one of the kinds 1, 3 and 4 and its
// second one, which follows: of a chosen document the rejected one, of an answer that is desirable or not the
// mismatched one, the same prompt with the answer to another.
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

// Whether the first document of a pair begins with token n = b T + t; `kinds` is [B, T]
template <class Int>
TESSERA_HOST_DEVICE bool begins_pair(const int32_t* documents, const int32_t* kinds, Int n, Int T) {
  return is_first_of_pair(static_cast<DocumentKind>(kinds[n])) &&
         documents[2 * static_cast<int64_t>(n)] == static_cast<int32_t>(n % T);
}
// Where the document that has token n ends, in tokens of all sequences
template <class Int>
TESSERA_HOST_DEVICE Int end_of_document(const int32_t* documents, Int n, Int T) {
  return n - n % T + static_cast<Int>(documents[2 * static_cast<int64_t>(n) + 1]);
}

// The place in its document of token n = b T + t
template <class Int>
TESSERA_HOST_DEVICE Int position_of(const int32_t* documents, Int n, Int T) {
  const Int t = n % T;
  return documents ? t - static_cast<Int>(documents[2 * static_cast<int64_t>(n)]) : t;
}
// The same from `positions`, [B, T], of every token; null: its place in its sequence. Where sequences are
// continued (see Caches in ops.h) `starts` is [B] instead. Idle ones: place 0
template <class Int>
TESSERA_HOST_DEVICE Int given_position(const int32_t* positions, const int32_t* starts, Int n, Int T) {
  if (positions) return static_cast<Int>(positions[n]);
  if (!starts) return n % T;
  const int32_t start = starts[n / T];
  return start < 0 ? 0 : static_cast<Int>(start) + n % T;
}

}  // namespace tessera
