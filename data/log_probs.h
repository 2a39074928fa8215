// The log-probabilities that a model gives the documents of a data set. They are computed once and stored in
// the file
// reference.log_probs beside the shards. Little-endian:
//   bytes 0 to 7    the letters "tesslogp"
//   8 to 11         uint32  version 1
//   12 to 15        uint32  H, a multiple of 8
//   16 to 15 + H    JSON, with blanks behind it: "data", a StreamFingerprint; "model", a folder; "weights",
//                   the checksum of its weights; "precision"; "sequence_length"; "documents", N; "numbers",
//                   the checksum of what follows
//   then            double [N]   for each document, the sum over its tokens that count
//                   int32  [N]   the number of these tokens; 0: the document is in no sequence
// If documents have labels, N is twice their number: each document is followed by its mismatched one.
#pragma once

#include <filesystem>

#include "data/fingerprint.h"
#include "kernels/base/documents.h"

namespace tessera {

struct LogProbs {
  StreamFingerprint data = {};
  std::string model, weights, precision;
  int64_t sequence_length = 0;  // of the sequences that the documents were packed into
  std::vector<double> sums = {};
  std::vector<int32_t> tokens = {};
};

inline constexpr const char* kLogProbsName = "reference.log_probs";
// data/pairs/reference.log_probs of data/pairs, or of data/pairs/*.bin
std::filesystem::path log_probs_file(const TokenStream& stream);

// The number N for a stream, and the index of a document among these numbers
int64_t log_probs_of(const TokenStream& stream);
size_t log_prob_place(const TokenStream& stream, int64_t document, DocumentKind kind);

// The file appears when it is complete. Error: it cannot be written.
void write_log_probs(const std::filesystem::path& path, const LogProbs& found);

// Reads the file of a stream. Error, with the command that computes the file: it is missing, damaged, or
// belongs to other data.
LogProbs read_log_probs(const TokenStream& stream);

}  // namespace tessera
