// Documents that share sequences, for tests: tensors of where each begins and ends.
#pragma once

#include <numeric>
#include <vector>

#include "tests/support.h"

namespace tessera::testing {

// Lengths of the documents of each sequence; all sequences are of T tokens.
using DocumentLengths = std::vector<std::vector<int64_t>>;

inline std::vector<int32_t> documents_of(const DocumentLengths& sequences) {
  std::vector<int32_t> documents;
  for (const std::vector<int64_t>& lengths : sequences) {
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      for (int64_t t = 0; t < length; ++t)
        documents.insert(documents.end(),
                         {static_cast<int32_t>(begin), static_cast<int32_t>(begin + length)});
      begin += length;
    }
  }
  return documents;
}

inline Tensor documents_tensor(HostTensors& make, const DocumentLengths& sequences) {
  const std::vector<int32_t> documents = documents_of(sequences);
  const auto B = std::ssize(sequences);
  const Tensor t = make.empty({B, std::ssize(documents) / 2 / B, 2}, DType::kI32);
  std::memcpy(t.data, documents.data(), t.bytes());
  return t;
}

// The place of each token in its document, [B, T]
inline Tensor positions_tensor(HostTensors& make, const DocumentLengths& sequences) {
  const std::vector<int32_t> documents = documents_of(sequences);
  const auto B = std::ssize(sequences), T = std::ssize(documents) / 2 / B;
  const Tensor t = make.empty({B, T}, DType::kI32);
  for (int64_t n = 0; n < B * T; ++n)
    t.as<int32_t>()[n] = static_cast<int32_t>(n % T) - documents[static_cast<size_t>(2 * n)];
  return t;
}

// Some documents of random lengths in each of `count` sequences of T tokens
inline DocumentLengths random_documents(uint64_t seed, int64_t count, int64_t T, int64_t longest) {
  DocumentLengths sequences(static_cast<size_t>(count));
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Philox random(seed, i);
    uint64_t draws = 0;
    for (int64_t left = T; left > 0;) {
      const int64_t length =
          std::min(left, 1 + static_cast<int64_t>(random.bits(draws++)[0] % static_cast<uint32_t>(longest)));
      sequences[i].push_back(length);
      left -= length;
    }
  }
  return sequences;
}

}  // namespace tessera::testing
