#include "train/session/token_ids.h"

#include <algorithm>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/documents.h"
#include "kernels/base/no_target.h"

namespace tessera {
namespace {

const char* name_of(Ids which) { return which == Ids::kTokens ? "token" : "target"; }

// Kernels read and write rows of tables by these ids; on a GPU an access past the end would not be caught.
void check_in_vocabulary(Ids which, std::span<const int32_t> ids, int64_t vocab_size) {
  // As unsigned, kNoTarget is the largest of all ids, and one more is 0.
  static_assert(kNoTarget == -1);
  const uint32_t shift = which == Ids::kTargets ? 1 : 0;
  uint32_t largest = 0;
  for (const int32_t id : ids) largest = std::max(largest, static_cast<uint32_t>(id) + shift);
  if (largest < static_cast<uint64_t>(vocab_size) + shift) return;
  const auto wrong = std::find(ids.begin(), ids.end(), static_cast<int32_t>(largest - shift));
  fail(
      "{} {} (number {} of {}) is outside the model's vocabulary of {} tokens, 0 to {}. Set model.vocab_size "
      "to that of the tokenizer that made the data, or prepare the data again",
      name_of(which), *wrong, wrong - ids.begin() + 1, ids.size(), vocab_size, vocab_size - 1);
}

// A document is the tokens begin to end - 1, and each of them says so.
void check_spans(std::span<const int32_t> documents, int64_t T) {
  const int64_t N = std::ssize(documents) / 2;
  int64_t begin = 0, end = 0;  // of the document of the token before
  for (int64_t n = 0; n < N; ++n) {
    const int64_t t = n % T, its_begin = documents[static_cast<size_t>(2 * n)],
                  its_end = documents[static_cast<size_t>(2 * n + 1)];
    if (t == 0 || t == end) begin = t, end = its_end;
    check(its_begin == begin && its_end == end && t < end && end <= T,
          "sequence {}, token {}: its document is {} to {}; it must begin at token {} and end {}", n / T, t,
          its_begin, its_end, begin, t == begin ? fmt::format("by {}", T) : fmt::format("at {}", end));
  }
}

}  // namespace

void check_ids(Ids which, std::span<const int32_t> ids, int64_t vocab_size, const Tensor& to) {
  check(!to.data || std::ssize(ids) == to.numel(), "there must be {} {}s, for {}, found {}", to.numel(),
        name_of(which), to.shape.to_string(), ids.size());
  check_in_vocabulary(which, ids, vocab_size);
}

void check_documents(std::span<const int32_t> documents, int64_t T, bool planned) {
  check(planned || documents.empty(),
        "the sequences hold several documents, and this run joins them: it was planned without documents");
  check_spans(documents, T);
}

std::span<const int32_t> checked_documents(std::span<const int32_t> documents, int64_t T, const Tensor& to,
                                           std::vector<int32_t>& made) {
  if (to && !documents.empty())
    check(!to.data || std::ssize(documents) == to.numel(), "documents must be {} numbers, for {}, found {}",
          to.numel(), to.shape.to_string(), documents.size());
  check_documents(documents, T, static_cast<bool>(to));
  if (!to || !documents.empty()) return documents;
  made.clear();
  for (int64_t n = 0; n < to.numel() / 2; ++n) made.insert(made.end(), {0, static_cast<int32_t>(T)});
  return made;
}

std::vector<int32_t> rows_with_targets(const SequencesView& sequences, int64_t T) {
  std::vector<int32_t> rows(sequences.tokens.size(), 1);
  if (sequences.documents.empty()) return rows;
  const auto of = [](auto& all, size_t first, size_t count) { return std::span(all).subspan(first, count); };
  for (size_t first = 0; first < rows.size(); first += static_cast<size_t>(T))
    for (size_t t = 0; t < static_cast<size_t>(T);) {
      const auto end = static_cast<size_t>(sequences.documents[2 * (first + t) + 1]);
      const auto targets = of(sequences.targets, first + t, end - t);
      const bool counts = std::ranges::any_of(targets, [](int32_t target) { return target != kNoTarget; });
      std::ranges::fill(of(rows, first + t, end - t), counts);
      t = end;
    }
  return rows;
}

std::vector<int32_t> positions_of(std::span<const int32_t> documents, int64_t T) {
  std::vector<int32_t> positions(documents.size() / 2);
  for (int64_t n = 0; n < std::ssize(positions); ++n)
    positions[static_cast<size_t>(n)] = static_cast<int32_t>(position_of(documents.data(), n, T));
  return positions;
}

void check_pairs(const SequencesView& sequences, int64_t T, const PreferenceRule& rule) {
  const auto kind_at = [&](int64_t n) {
    return static_cast<DocumentKind>(sequences.kinds[static_cast<size_t>(n)]);
  };
  DocumentKind before = DocumentKind::kPlain;  // the document before this one
  for (int64_t n = 0; n < std::ssize(sequences.kinds);) {
    const int64_t t = n % T, end = sequences.documents[static_cast<size_t>(2 * n + 1)];
    const DocumentKind kind = kind_at(n);
    if (t == 0) before = DocumentKind::kPlain;
    const bool follows = is_first_of_pair(before), first = is_first_of_pair(kind);
    check(follows ? kind == second_after(before) : first || kind == DocumentKind::kPlain,
          "sequence {}, token {}: the first document of a pair has to be followed by its second one", n / T,
          t);
    check(!(first && end == T), "sequence {}, token {}: the second document of a pair is missing", n / T, t);
    check(!first || (kind == DocumentKind::kChosen) != rule.has_labels(),
          "sequence {}, token {}: the documents are {}", n / T, t,
          rule.has_labels()
              ? "pairs of a chosen and a rejected answer, and the loss is of answers with labels"
              : "answers with labels, and the loss is of pairs");
    before = kind;
    n += std::max<int64_t>(end - t, 1);
  }
}

void copy_ids(const Stream& stream, Ids which, std::span<const int32_t> ids, int64_t vocab_size,
              const Tensor& to) {
  check_ids(which, ids, vocab_size, to);
  stream.run(Copy{{const_cast<int32_t*>(ids.data()), DType::kI32, to.shape, Device::kCpu}, to});
}

void copy_documents(const Stream& stream, std::span<const int32_t> documents, int64_t T,
                    const DocumentTensors& to) {
  std::vector<int32_t> made;
  const std::span<const int32_t> values = checked_documents(documents, T, to.documents, made);
  if (!to.documents) return;
  const std::vector<int32_t> positions = positions_of(values, T);
  const auto copy = [&](std::span<const int32_t> from, const Tensor& tensor) {
    stream.run(Copy{{const_cast<int32_t*>(from.data()), DType::kI32, tensor.shape, Device::kCpu}, tensor});
  };
  copy(values, to.documents), copy(positions, to.positions);
}

}  // namespace tessera
