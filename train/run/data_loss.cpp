#include "train/run/data_loss.h"

#include <algorithm>

namespace tessera {
namespace {

// For each position in a document, the tokens there that count are added.
void count_by_position(const Sequences& sequences, int64_t T, std::vector<double>& by_position) {
  for (size_t n = 0; !by_position.empty() && n < sequences.targets.size(); ++n)
    if (sequences.targets[n] != kNoTarget)
      ++by_position[static_cast<size_t>(position_in(sequences, static_cast<int64_t>(n), T))];
}

size_t ranges_of(const Session& session, const LossJob& job) {
  return job.by_position ? position_ends(session.shape().sequence_length).size() : 0;
}
// The numbers of a batch in the list of sums: its mean loss times the sequences that its tokens which count
// would fill, these tokens, and by range of positions the sums of the losses and the tokens.
size_t stride_of(const Session& session, const LossJob& job) { return 2 + 2 * ranges_of(session, job); }

}  // namespace

std::vector<double> batch_sums(Session& session, const LossJob& job) {
  const int64_t T = session.shape().sequence_length, batch = session.shape().batch;
  const size_t stride = stride_of(session, job);
  std::vector<double> sums(stride * static_cast<size_t>((job.sequences + batch - 1) / batch));
  Sequences sequences;
  for (int64_t first = job.rank * batch; first < job.sequences; first += job.ranks * batch) {
    if (job.continues && !job.continues(first)) break;
    const int64_t count = std::min(batch, job.sequences - first);
    job.data.fetch(first, count, sequences);
    std::vector<double> losses(job.by_position ? static_cast<size_t>(T) : 0), tokens(losses.size());
    const double its_tokens = static_cast<double>(counted(sequences.targets));
    double* of_batch = sums.data() + stride * static_cast<size_t>(first / batch);
    of_batch[0] = session.evaluate(sequences, count, losses) * (its_tokens / static_cast<double>(T));
    of_batch[1] = its_tokens;
    if (!job.by_position) continue;
    count_by_position(sequences, T, tokens);
    const std::vector<double> ranges = sums_by_range(losses), counts = sums_by_range(tokens);
    std::ranges::copy(ranges, of_batch + 2);
    std::ranges::copy(counts, of_batch + 2 + ranges.size());
  }
  return sums;
}

DataLoss data_loss(const Session& session, const LossJob& job, const std::vector<double>& sums) {
  const size_t ranges = ranges_of(session, job), stride = stride_of(session, job);
  DataLoss found{.sequences = job.sequences,
                 .position_sums = std::vector<double>(ranges),
                 .position_tokens = std::vector<double>(ranges)};
  double sum = 0, tokens = 0;
  for (size_t at = 0; at < sums.size(); at += stride) {
    sum += sums[at];
    tokens += sums[at + 1];
    for (size_t i = 0; i < ranges; ++i) {
      found.position_sums[i] += sums[at + 2 + i];
      found.position_tokens[i] += sums[at + 2 + ranges + i];
    }
  }
  found.loss = sum / (tokens / static_cast<double>(session.shape().sequence_length));
  found.counted = static_cast<int64_t>(tokens);
  return found;
}

}  // namespace tessera
