#include "train/run/data_loss.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/check.h"
#include "kernels/base/nan.h"
#include "train/session/decoder.h"
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
size_t stride_of(const Session& session, const LossJob& job) { return 2 + 2 * ranges_of(session, job); }

// The numbers of a pair in the list of results, of a loss of pairs: kto's loss of a pair depends on all.
constexpr size_t kPairNumbers = 7;

void write_pair(const PreferencePair& pair, double* numbers) {
  for (const PreferenceSide* side : {&pair.chosen, &pair.rejected}) {
    *numbers++ = side->logp;
    *numbers++ = side->reference;
    *numbers++ = side->tokens;
  }
  *numbers = pair.is_desirable ? 1 : 0;
}
PreferencePair read_pair(const double* numbers) {
  return {.chosen = {.logp = numbers[0], .reference = numbers[1], .tokens = numbers[2]},
          .rejected = {.logp = numbers[3], .reference = numbers[4], .tokens = numbers[5]},
          .is_desirable = numbers[6] != 0};
}

// Writes the numbers of the pairs in the `count` sequences from `first` on.
void measure_pairs(Session& session, const LossJob& job, int64_t first, int64_t count, double* numbers) {
  const int64_t T = session.shape().sequence_length;
  Sequences sequences;
  job.data.fetch(first, count, sequences);
  const std::vector<float> losses = session.losses(sequences, count, T),
                           reference = job.reference ? job.reference(sequences, count) : std::vector<float>();
  // Each rank of a context has the losses of its own tokens. What all of them know, only the first one
  // counts.
  const bool is_first = session.shape().context.rank == 0;
  for (PreferencePair& pair : pairs_in(
           {.rule = *job.pairs, .sequences = sequences, .T = T, .losses = losses, .reference = reference})) {
    if (!is_first) {
      pair.is_desirable = false;
      for (PreferenceSide* side : {&pair.chosen, &pair.rejected}) {
        side->tokens = 0;
        if (reference.empty()) side->reference = 0;
      }
    }
    write_pair(pair, numbers);
    numbers += kPairNumbers;
  }
}

SharedBatches pair_batches(Session& session, const LossJob& job, int64_t count) {
  const int64_t batch = session.shape().batch;
  std::vector<int64_t> before;  // pairs before a batch, which data says without a forward
  int64_t pairs = 0;
  Sequences sequences;
  for (int64_t first = 0; first < job.sequences; first += batch) {
    before.push_back(pairs);
    job.data.fetch(first, std::min(batch, job.sequences - first), sequences);
    pairs += count_pairs(sequences, session.shape().sequence_length);
  }
  return {.count = count,
          .results = pairs * static_cast<int64_t>(kPairNumbers),
          .run = [&session, &job, batch, before](int64_t number, std::span<double> results) {
            const int64_t first = number * batch;
            measure_pairs(
                session, job, first, std::min(batch, job.sequences - first),
                results.data() + kPairNumbers * static_cast<size_t>(before[static_cast<size_t>(number)]));
          }};
}

DataLoss loss_of_pairs(const LossJob& job, const std::vector<double>& results) {
  std::vector<PreferencePair> pairs;
  for (size_t at = 0; at < results.size(); at += kPairNumbers) pairs.push_back(read_pair(&results[at]));
  const auto count = std::ssize(pairs);
  DataLoss found{.sequences = job.sequences, .counted = count};
  const auto over = static_cast<double>(count);
  found.figures = mean_figures(pair_figures(*job.pairs, std::move(pairs)), over, over);
  found.loss = without_sign_if_nan(found.figures[0]);
  return found;
}

// The sum of the losses of one sequence's targets that count, read through a cache; each is added to its
// place of by_position, unless that is empty.
double loss_through_cache(Decoder& decoder, const SequencesView& sequence, std::span<double> by_position) {
  double sum = 0;
  decoder.read_through(sequence.tokens, [&](int64_t first, std::span<const float> logits) {
    const auto V = static_cast<size_t>(decoder.vocab_size());
    for (size_t row = 0; row * V < logits.size(); ++row) {
      const size_t place = static_cast<size_t>(first) + row;
      const int32_t target = sequence.targets[place];
      if (target == kNoTarget) continue;
      const std::span<const float> own = logits.subspan(row * V, V);
      const double most = double{*std::ranges::max_element(own)};
      double powers = 0;
      for (const float x : own) powers += std::exp(double{x} - most);
      const double loss = most + std::log(powers) - double{own[static_cast<size_t>(target)]};
      sum += loss;
      if (!by_position.empty()) by_position[place] += loss;
    }
  });
  return sum;
}

double losses_through_cache(Session& session, const Sequences& sequences, const LossJob& job, int64_t count,
                            std::span<double> by_position) {
  const int64_t T = session.shape().sequence_length;
  check(sequences.documents.empty() && session.shape().context.size == 1,
        "a cache of {} has no documents and no ranks that share a sequence", name_of(job.cache));
  Decoder decoder(session, {.capacity = T, .prefill = CacheFormat::kGroupTokens, .cache = job.cache});
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += loss_through_cache(decoder, SequencesView(sequences).tokens_from(i * T, T), by_position);
  return sum;
}

// Writes the numbers of the batch of `count` sequences from `first` on.
void measure_batch(Session& session, const LossJob& job, int64_t first, int64_t count, double* numbers) {
  const int64_t T = session.shape().sequence_length;
  Sequences sequences;
  job.data.fetch(first, count, sequences);
  std::vector<double> losses(job.by_position ? static_cast<size_t>(T) : 0), tokens(losses.size());
  const double its_tokens = static_cast<double>(counted(sequences.targets));
  numbers[0] = is_small(job.cache)
                   ? losses_through_cache(session, sequences, job, count, losses) / static_cast<double>(T)
                   : session.evaluate(sequences, count, losses) * (its_tokens / static_cast<double>(T));
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
  if (job.pairs) return pair_batches(session, job, count);
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
  if (job.pairs) return loss_of_pairs(job, results);
  const size_t ranges = ranges_of(session, job), stride = stride_of(session, job);
  DataLoss found{.sequences = job.sequences,
                 .position_sums = std::vector<double>(ranges),
                 .position_tokens = std::vector<double>(ranges)};
  double sum = 0, tokens = 0;
  for (size_t at = 0; at < results.size(); at += stride) {
    sum += results[at];
    tokens += results[at + 1];
    for (size_t i = 0; i < ranges; ++i) {
      found.position_sums[i] += results[at + 2 + i];
      found.position_tokens[i] += results[at + 2 + ranges + i];
    }
  }
  found.loss = without_sign_if_nan(sum / (tokens / static_cast<double>(session.shape().sequence_length)));
  found.counted = static_cast<int64_t>(tokens);
  return found;
}

}  // namespace tessera
