#include "train/run/teacher_logits_walk.h"

#include <algorithm>

namespace tessera {
namespace {

void write_records(Session& session, const TeacherLogitsJob& job, int64_t first, int64_t count,
                   std::span<double> results) {
  const int64_t T = session.shape().sequence_length, K = session.shape().largest_logits;
  Sequences sequences;
  job.data.fetch(first, count, sequences);
  Session::Largest found = session.largest_logits(sequences, count, T, job.temperature);
  for (int64_t b = 0; b < count; ++b)
    for (const PackedLoader::PackedDocument& piece : job.data.documents_at(first + b)) {
      const int64_t begin = b * T + piece.begin;
      const auto part = [&](auto& of, int64_t each) {
        return std::span(of).subspan(static_cast<size_t>(begin * each),
                                     static_cast<size_t>(piece.count * each));
      };
      const std::span<const int32_t> targets = part(sequences.targets, 1);
      job.writer.write(piece.document, piece.first_token, targets,
                       {part(found.ids, K), part(found.values, K + 1)});
      results[0] += static_cast<double>(counted(targets));
    }
}

}  // namespace

SharedBatches teacher_logits_batches(Session& session, const TeacherLogitsJob& job) {
  const int64_t sequences = job.data.sequences_per_epoch(), batch = session.shape().batch;
  return {.count = (sequences + batch - 1) / batch,
          .results = 1,
          .run = [&session, &job, batch, sequences](int64_t number, std::span<double> results) {
            const int64_t first = number * batch;
            write_records(session, job, first, std::min(batch, sequences - first), results);
          }};
}

}  // namespace tessera
