#include "train/run/data_loss.h"

#include <algorithm>

#include "kernels/base/nan.h"
#include "train/session/pair_figures.h"

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
// The numbers of a batch in the list of results: its mean loss times the sequences that those of its tokens
// which count would fill, these tokens, and by range of positions the sums of the losses and the tokens.
// Of pairs it is the sum of their losses over T, the number of pairs, and the sums of their figures.
size_t stride_of(const Session& session, const LossJob& job) {
  return 2 + (job.pairs ? size_t{PreferenceFigures::kCount} : 2 * ranges_of(session, job));
}

void measure_pairs(Session& session, const LossJob& job, const Sequences& sequences, int64_t count,
                   double* numbers) {
  const int64_t T = session.shape().sequence_length;
  const std::vector<float> losses = session.losses(sequences, count, T),
                           reference = job.reference ? job.reference(sequences, count) : std::vector<float>();
  const std::vector<double> sums = pair_figures(
      {.rule = *job.pairs, .sequences = sequences, .T = T, .losses = losses, .reference = reference});
  numbers[0] = sums[0] / static_cast<double>(T);
  numbers[1] = static_cast<double>(count_pairs(sequences, T));
  std::ranges::copy(sums, numbers + 2);
}

// Writes the numbers of the batch of `count` sequences from `first` on.
void measure_batch(Session& session, const LossJob& job, int64_t first, int64_t count, double* numbers) {
  const int64_t T = session.shape().sequence_length;
  Sequences sequences;
  job.data.fetch(first, count, sequences);
  if (job.pairs) return measure_pairs(session, job, sequences, count, numbers);
  std::vector<double> losses(job.by_position ? static_cast<size_t>(T) : 0), tokens(losses.size());
  const double its_tokens = static_cast<double>(counted(sequences.targets));
  numbers[0] = session.evaluate(sequences, count, losses) * (its_tokens / static_cast<double>(T));
  // The ranks of a context have losses of their tokens each, and all the same counts: the first one's count.
  const bool is_first = session.shape().context.rank == 0;
  numbers[1] = is_first ? its_tokens : 0;
  if (!job.by_position) return;
  if (is_first) count_by_position(sequences, T, tokens);
  const std::vector<double> ranges = sums_by_range(losses), counts = sums_by_range(tokens);
  std::ranges::copy(ranges, numbers + 2);
  std::ranges::copy(counts, numbers + 2 + ranges.size());
}

}  // namespace

SharedBatches loss_batches(Session& session, const LossJob& job) {
  const int64_t batch = session.shape().batch, count = (job.sequences + batch - 1) / batch;
  const size_t stride = stride_of(session, job);
  return {.count = count,
          .results = count * static_cast<int64_t>(stride),
          .run = [&session, &job, batch, stride](int64_t number, std::span<double> results) {
            const int64_t first = number * batch;
            measure_batch(session, job, first, std::min(batch, job.sequences - first),
                          results.data() + stride * static_cast<size_t>(number));
          }};
}

DataLoss data_loss(const Session& session, const LossJob& job, const std::vector<double>& results) {
  const size_t ranges = ranges_of(session, job), stride = stride_of(session, job);
  DataLoss found{.sequences = job.sequences,
                 .position_sums = std::vector<double>(ranges),
                 .position_tokens = std::vector<double>(ranges)};
  double sum = 0, tokens = 0;
  if (job.pairs) found.figures.resize(PreferenceFigures::kCount);
  for (size_t at = 0; at < results.size(); at += stride) {
    sum += results[at];
    tokens += results[at + 1];
    for (size_t i = 0; i < found.figures.size(); ++i) found.figures[i] += results[at + 2 + i];
    for (size_t i = 0; i < ranges; ++i) {
      found.position_sums[i] += results[at + 2 + i];
      found.position_tokens[i] += results[at + 2 + ranges + i];
    }
  }
  found.loss = without_sign_if_nan(sum / (tokens / static_cast<double>(session.shape().sequence_length)));
  for (double& figure : found.figures) figure /= tokens;
  found.counted = static_cast<int64_t>(tokens);
  return found;
}

}  // namespace tessera
