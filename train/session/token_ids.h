// Token ids, and where documents lie, from the host to the device.
#pragma once

#include <span>

#include "kernels/stream.h"

namespace tessera {

enum class Ids { kTokens, kTargets };

// Copies ids to the device, as many as `to` has elements (a planned tensor takes any number). Error,
// before any kernel: another number, or an id outside the vocabulary; a target may be kNoTarget.
void copy_ids(const Stream& stream, Ids which, std::span<const int32_t> ids, int64_t vocab_size,
              const Tensor& to);

// Copies `documents` of Sequences of T tokens to `to`, [.., T, 2]; without any, a sequence is one document.
// A `to` that is none wants none. Error, before any kernel: another number, a token outside its document, a
// document that is not the same for all its tokens.
void copy_documents(const Stream& stream, std::span<const int32_t> documents, int64_t T, const Tensor& to);

}  // namespace tessera
