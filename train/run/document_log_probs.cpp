#include "train/run/document_log_probs.h"

#include <algorithm>

#include "kernels/base/no_target.h"

namespace tessera {
namespace {

void add_batch(Session& session, const LogProbJob& job, int64_t first, int64_t count,
               std::span<double> results) {
  const int64_t T = session.shape().sequence_length;
  Sequences sequences;
  job.data.fetch(first, count, sequences);
  const std::vector<float> losses = session.losses(sequences, count, T);
  for (int64_t b = 0; b < count; ++b)
    for (const PackedLoader::PackedDocument& piece : job.data.documents_at(first + b)) {
      const size_t at = 2 * log_prob_place(job.stream, piece.document, piece.kind);
      for (int64_t t = piece.begin; t < piece.begin + piece.count; ++t) {
        const auto n = static_cast<size_t>(b * T + t);
        if (sequences.targets[n] == kNoTarget) continue;
        results[at] -= static_cast<double>(losses[n]);
        results[at + 1] += 1;
      }
    }
}

}  // namespace

SharedBatches log_prob_batches(Session& session, const LogProbJob& job) {
  const int64_t sequences = job.data.sequences_per_epoch(), batch = session.shape().batch;
  return {.count = (sequences + batch - 1) / batch,
          .results = 2 * log_probs_of(job.stream),
          .run = [&session, &job, batch, sequences](int64_t number, std::span<double> results) {
            const int64_t first = number * batch;
            add_batch(session, job, first, std::min(batch, sequences - first), results);
          }};
}

}  // namespace tessera
