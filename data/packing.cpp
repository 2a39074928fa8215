#include "data/packing.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <utility>

#include "data/loader.h"
#include "kernels/base/check.h"
#include "kernels/base/checksum.h"

namespace tessera {
namespace {

constexpr size_t kNamed = 3;  // documents in PackingFigures

template <class T>
void update(Checksum& checksum, const std::vector<T>& values) {
  checksum.update(std::as_bytes(std::span(values)));
}

}  // namespace

// A set of numbers 0 .. most: a bit for each, and levels of bits that tell which words below are not 0.
class SetOfRooms {
 public:
  explicit SetOfRooms(int64_t most) {
    for (auto words = static_cast<size_t>(most) / 64 + 1;; words = (words + 63) / 64) {
      levels_.emplace_back(words, 0);
      if (words == 1) break;
    }
  }

  void add(int64_t number) {
    auto at = static_cast<size_t>(number);
    for (auto& level : levels_) {
      level[at / 64] |= uint64_t{1} << at % 64;
      at /= 64;
    }
  }

  void remove(int64_t number) {
    auto at = static_cast<size_t>(number);
    for (auto& level : levels_) {
      level[at / 64] &= ~(uint64_t{1} << at % 64);
      if (level[at / 64] != 0) return;
      at /= 64;
    }
  }

  // The smallest number that is at least `number`; -1: none
  int64_t at_least(int64_t number) const {
    auto at = static_cast<size_t>(number);
    for (size_t level = 0; level < levels_.size(); ++level) {
      const auto& words = levels_[level];
      if (at / 64 >= words.size()) return -1;
      const uint64_t found = words[at / 64] & ~uint64_t{0} << at % 64;
      if (found != 0) return descend(level, at / 64 * 64 + static_cast<size_t>(std::countr_zero(found)));
      at = at / 64 + 1;
    }
    return -1;
  }

 private:
  // The first number below bit `at` of a level
  int64_t descend(size_t level, size_t at) const {
    while (level > 0) at = at * 64 + static_cast<size_t>(std::countr_zero(levels_[--level][at]));
    return static_cast<int64_t>(at);
  }

  std::vector<std::vector<uint64_t>> levels_;
};

// The sequences that are not full, by the room that they have left
class Packing::Rooms {
 public:
  explicit Rooms(int64_t T) : some_(T), newest_(static_cast<size_t>(T) + 1, kNone) {}

  // Takes the sequence with the least room for `count` inputs, a new one if none has any, and leaves it with
  // the rest of its room.
  Id place(int64_t count) {
    const int64_t T = std::ssize(newest_) - 1, found = some_.at_least(count);
    const int64_t room = found < 0 ? T : found;
    Id sequence = static_cast<Id>(older_.size());
    if (found < 0) {
      older_.push_back(kNone);
    } else {
      sequence = newest_[static_cast<size_t>(found)];
      newest_[static_cast<size_t>(found)] = older_[sequence];
      if (older_[sequence] == kNone) some_.remove(found);
    }
    const int64_t left = room - count;
    if (left == 0) return sequence;
    older_[sequence] = std::exchange(newest_[static_cast<size_t>(left)], sequence);
    some_.add(left);
    return sequence;
  }

  size_t sequences() const { return older_.size(); }

 private:
  static constexpr Id kNone = std::numeric_limits<Id>::max();
  SetOfRooms some_;         // rooms that a sequence has
  std::vector<Id> newest_;  // by room: a list of sequences
  std::vector<Id> older_;   // by sequence: the next of its list
};

Packing::Packing(const PackingOptions& options) : T_(options.sequence_length) {
  check(T_ >= 1, "the sequence length must be at least 1, found {}", T_);
  check(options.documents < std::numeric_limits<Id>::max(),
        "{} documents cannot be packed: at most {} can; divide the data into several sources",
        options.documents, std::numeric_limits<Id>::max() - 1);
  best_fit(options, cut(options));
  sum_up(options);
}

bool Packing::keep(const PackingOptions& options, const Piece& piece) {
  if (options.counts && !options.counts(piece.document, piece.first, piece.count)) {
    ++figures_.uncounted;
    auto& first = figures_.first_uncounted;
    if (first.size() < kNamed && (first.empty() || first.back() != piece.document))
      first.push_back(piece.document);
    return false;
  }
  figures_.inputs += piece.count;
  return true;
}

// Cuts off the full pieces; returns the documents that have a rest.
std::vector<Packing::Id> Packing::cut(const PackingOptions& options) {
  std::vector<Id> rests;
  for (int64_t document = 0; document < options.documents; ++document) {
    const int64_t inputs = options.inputs(document), pieces = inputs / T_, rest = inputs % T_;
    figures_.empty += inputs == 0;
    figures_.cut += inputs > T_;
    bool kept = false;
    for (int64_t piece = 0; piece < pieces; ++piece)
      if (keep(options, {document, piece * T_, T_})) {
        full_.push_back({static_cast<Id>(document), static_cast<Id>(piece)});
        kept = true;
      }
    if (rest > 0 && keep(options, {document, pieces * T_, rest})) {
      rests.push_back(static_cast<Id>(document));
      kept = true;
    }
    figures_.documents += kept;
  }
  check(!full_.empty() || !rests.empty(),
        "no sequence can be made of {} documents: {} have one token, and in {} pieces no target counts; use "
        "other data, or prepare it again with ./prepare --loss all",
        options.documents, figures_.empty, figures_.uncounted);
  return rests;
}

void Packing::best_fit(const PackingOptions& options, const std::vector<Id>& rests) {
  const auto length = [&](Id document) { return options.inputs(document) % T_; };
  // A counting sort, the longest first. Documents of one length are in a random order, so that neighbours,
  // which are often alike, do not share a sequence.
  std::vector<Id> places(static_cast<size_t>(T_) + 1, 0);
  for (const Id document : rests) ++places[static_cast<size_t>(T_ - 1 - length(document) + 1)];
  for (size_t i = 1; i < places.size(); ++i) places[i] += places[i - 1];
  std::vector<Id> sorted(rests.size());
  if (!rests.empty()) {
    const SequenceOrder order(std::ssize(rests), options.seed, true);
    for (int64_t i = 0; i < std::ssize(rests); ++i) {
      const Id document = rests[static_cast<size_t>(order.at(i))];
      sorted[places[static_cast<size_t>(T_ - 1 - length(document))]++] = document;
    }
  }
  Rooms rooms(T_);
  std::vector<Id> sequence_of(sorted.size());
  for (size_t i = 0; i < sorted.size(); ++i) sequence_of[i] = rooms.place(length(sorted[i]));

  begins_.assign(rooms.sequences() + 1, 0);
  for (const Id sequence : sequence_of) ++begins_[sequence + 1];
  for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
  documents_.resize(sorted.size());
  std::vector<Id> next(begins_.begin(), begins_.end() - 1);
  for (size_t i = 0; i < sorted.size(); ++i) documents_[next[sequence_of[i]]++] = sorted[i];
}

void Packing::sum_up(const PackingOptions& options) {
  figures_.sequences = std::ssize(full_) + std::ssize(begins_) - 1;
  const double tokens = static_cast<double>(figures_.sequences) * static_cast<double>(T_);
  figures_.padding = 1 - static_cast<double>(figures_.inputs) / tokens;
  Checksum checksum;
  constexpr int64_t kBlock = 4096;
  std::vector<int64_t> lengths;
  for (int64_t first = 0; first < options.documents; first += kBlock) {
    lengths.clear();
    for (int64_t i = first; i < std::min(first + kBlock, options.documents); ++i)
      lengths.push_back(options.inputs(i));
    update(checksum, lengths);
  }
  update(checksum, full_);
  update(checksum, documents_);
  update(checksum, begins_);
  checksum_ = checksum.digits();
}

}  // namespace tessera
