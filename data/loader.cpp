#include "data/loader.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "kernels/base/check.h"

namespace tessera {
namespace {

// The finaliser of SplitMix64: every input bit changes about half of the output bits.
constexpr uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// 2^64 / golden ratio: keeps mix's inputs away from 0, where it is 0
constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

// The classic construction has four rounds; for small n the halves have only a bit or two, so this has more.
constexpr int kRounds = 6;

int64_t count_windows(const LoaderOptions& options) {
  const auto& [stream, first_token, token_count, T, seed, shuffle, shift] = options;
  check(stream != nullptr, "a Loader needs a token stream");
  check(T >= 1, "the sequence length must be at least 1, found {}", T);
  check(first_token >= 0 && token_count >= 0 && first_token <= stream->size() - token_count,
        "the tokens {} to {} are not all in {}", first_token, first_token + token_count - 1,
        stream->describe());
  check(
      token_count > T,
      "too few tokens for one sequence of length {}: expected at least {} (the targets are shifted by one), "
      "found {} in {}; use a shorter sequence or more data",
      T, T + 1, token_count, stream->describe());
  return (token_count - 1) / T;
}

}  // namespace

SequenceOrder::SequenceOrder(int64_t n, uint64_t seed, bool shuffle) : n_(n), seed_(seed), shuffle_(shuffle) {
  check(n >= 1, "an order needs at least 1 sequence, found {}", n);
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(n - 1)));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

int64_t SequenceOrder::at(int64_t position) const {
  check(position >= 0, "a position in the data cannot be negative, found {}", position);
  if (!shuffle_) return position % n_;
  const uint64_t epoch_key = mix(mix(seed_ + kGolden) + static_cast<uint64_t>(position / n_));
  // Cycle walking: permute is a bijection of [0, 4^half_bits_), a range less than four times n (or of 4, for
  // n < 4). Following it from an index below n until it is below n again is a bijection of [0, n), after
  // about 4 steps or fewer.
  uint64_t index = static_cast<uint64_t>(position % n_);
  do {
    index = permute(index, epoch_key);
  } while (index >= static_cast<uint64_t>(n_));
  return static_cast<int64_t>(index);
}

// A Feistel network: each round can be undone, whatever the function of `right` is; so the whole is a
// bijection.
uint64_t SequenceOrder::permute(uint64_t index, uint64_t epoch_key) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = index >> half_bits_, right = index & mask;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const uint64_t next = left ^ (mix(mix(epoch_key + round * kGolden) ^ right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

Loader::Loader(const LoaderOptions& options)
    : options_(options),
      sequences_per_epoch_(count_windows(options)),
      order_(sequences_per_epoch_, options.seed, options.shuffle),
      offsets_(options.sequence_length, mix(options.seed + kGolden), true) {}

int64_t Loader::offset(int64_t epoch) const {
  const int64_t T = options_.sequence_length;
  return options_.shift ? (offsets_.at(epoch) - offsets_.at(0) + T) % T : 0;
}

// Calls read(first token, part of `out`) for the parts of `out` that are consecutive tokens of the stream.
template <class Read>
void Loader::on_ring(int64_t first, std::span<int32_t> out, const Read& read) const {
  first %= options_.token_count;
  const auto before_the_end =
      static_cast<size_t>(std::min(options_.token_count - first, static_cast<int64_t>(out.size())));
  read(options_.first_token + first, out.first(before_the_end));
  if (before_the_end < out.size()) read(options_.first_token, out.subspan(before_the_end));
}

int64_t Loader::first_of(int64_t position) const {
  return offset(position / sequences_per_epoch_) + order_.at(position) * options_.sequence_length;
}

std::vector<SequencePiece> Loader::pieces(int64_t position) const {
  std::vector<SequencePiece> pieces;
  std::vector<int32_t> window(static_cast<size_t>(options_.sequence_length));
  int64_t begin = 0;
  on_ring(first_of(position), window, [&](int64_t token, std::span<int32_t> part) {
    const std::vector<SequencePiece> more = options_.stream->pieces({token, std::ssize(part)}, begin);
    pieces.insert(pieces.end(), more.begin(), more.end());
    begin += std::ssize(part);
  });
  return pieces;
}

void Loader::fetch_at(std::span<const int64_t> positions, Sequences& out) const {
  const int64_t T = options_.sequence_length, count = std::ssize(positions);
  out.tokens.resize(static_cast<size_t>(count * T));
  out.targets.resize(out.tokens.size());
  out.documents.clear();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = first_of(positions[static_cast<size_t>(i)]);
    const auto row = [&](std::vector<int32_t>& rows) {
      return std::span(rows).subspan(static_cast<size_t>(i * T), static_cast<size_t>(T));
    };
    const auto read = [&](int64_t token, std::span<int32_t> part) { options_.stream->read(token, part); };
    on_ring(first, row(out.tokens), read);
    on_ring(first + 1, row(out.targets), read);
    if (const DocumentIndex* documents = options_.stream->documents())
      on_ring(first + 1, row(out.targets),
              [&](int64_t token, std::span<int32_t> part) { documents->drop_uncounted(token, part); });
  }
}

namespace {

TrainValidationSplit split_by_fraction(const SplitOptions& options) {
  const int64_t held_out =
      std::llround(static_cast<double>(options.token_count) * options.validation_fraction);
  return {.train = {0, options.token_count - held_out},
          .validation = {options.token_count - held_out, held_out}};
}

}  // namespace

bool can_split(const SplitOptions& options) {
  const auto& [train, validation] = split_by_fraction(options);
  return std::min(train.token_count, validation.token_count) > options.sequence_length;
}

TrainValidationSplit split_train_validation(const SplitOptions& options) {
  const auto& [token_count, fraction, T] = options;
  check(fraction > 0 && fraction < 1, "the validation fraction must be between 0 and 1, found {}", fraction);
  check(T >= 1, "the sequence length must be at least 1, found {}", T);
  const TrainValidationSplit split = split_by_fraction(options);
  for (const auto& [name, range] :
       {std::pair("training", split.train), std::pair("validation", split.validation)}) {
    check(range.token_count > T,
          "with a validation fraction of {}, {} of the {} tokens are for {}: too few for one sequence of "
          "length {}, which takes {}; change the fraction, use a shorter sequence or more data",
          fraction, range.token_count, token_count, name, T, T + 1);
  }
  return split;
}

}  // namespace tessera
