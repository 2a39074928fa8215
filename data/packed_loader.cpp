#include "data/packed_loader.h"

#include <algorithm>
#include <span>

#include "kernels/base/check.h"
#include "kernels/base/no_target.h"

namespace tessera {

const DocumentIndex& documents_of(const TokenStream& stream) {
  const DocumentIndex* documents = stream.documents();
  check(
      documents != nullptr,
      "{} does not say where its documents begin, and data.documents=mask packs whole documents. Prepare the "
      "data again from its text: ./prepare FILES --output FOLDER, or join documents with --set "
      "data.documents=join",
      stream.path().string());
  return *documents;
}

namespace {

const PackedLoaderOptions& checked(const PackedLoaderOptions& options) {
  check(options.stream != nullptr, "a PackedLoader needs a token stream");
  const int64_t all = documents_of(*options.stream).count();
  check(options.first_document >= 0 && options.document_count >= 1 &&
            options.first_document <= all - options.document_count,
        "the documents {} to {} are not all in {}, which has {}", options.first_document,
        options.first_document + options.document_count - 1, options.stream->path().string(), all);
  return options;
}

}  // namespace

// Where a sequence goes
struct PackedLoader::Row {
  std::span<int32_t> tokens, targets;  // [T]
  std::span<int32_t> documents;        // [T, 2]
};

PackedLoader::PackedLoader(const PackedLoaderOptions& options)
    : options_(checked(options)),
      documents_(documents_of(*options.stream)),
      packing_(pack()),
      order_(packing_.sequences(), options.seed, true) {}

int64_t PackedLoader::inputs(int64_t document) const {
  return documents_.document(options_.first_document + document).token_count - 1;
}

Packing PackedLoader::pack() const {
  std::vector<int32_t> targets;
  const auto counts = [&](int64_t document, int64_t first, int64_t count) {
    targets.assign(static_cast<size_t>(count), 0);
    const int64_t begin = documents_.document(options_.first_document + document).first_token;
    documents_.drop_uncounted(begin + first + 1, targets);
    return std::ranges::any_of(targets, [](int32_t target) { return target != kNoTarget; });
  };
  return Packing({.documents = options_.document_count,
                  .inputs = [this](int64_t document) { return inputs(document); },
                  .sequence_length = options_.sequence_length,
                  .seed = options_.seed,
                  .counts = counts});
}

TokenRange PackedLoader::range() const {
  const TokenRange first = documents_.document(options_.first_document);
  const TokenRange last = documents_.document(options_.first_document + options_.document_count - 1);
  return {first.first_token, last.first_token + last.token_count - first.first_token};
}

void PackedLoader::fill(int64_t sequence, const Row& row) const {
  size_t filled = 0;
  const auto mark = [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      row.documents[2 * t] = static_cast<int32_t>(begin);
      row.documents[2 * t + 1] = static_cast<int32_t>(end);
    }
  };
  const auto add = [&](const Packing::Piece& piece) {
    const int64_t document = options_.first_document + piece.document;
    const int64_t first = documents_.document(document).first_token + piece.first;
    const auto count = static_cast<size_t>(piece.count);
    const std::span<int32_t> targets = row.targets.subspan(filled, count);
    options_.stream->read(first, row.tokens.subspan(filled, count));
    options_.stream->read(first + 1, targets);
    documents_.drop_uncounted(first + 1, targets);
    mark(filled, filled + count);
    filled += count;
  };
  packing_.visit(
      sequence, [this](int64_t document) { return inputs(document); }, add);
  std::ranges::fill(row.tokens.subspan(filled), 0);
  std::ranges::fill(row.targets.subspan(filled), kNoTarget);
  mark(filled, row.tokens.size());
}

int64_t PackedLoader::sequence_at(int64_t position) const {
  return order_.at(options_.shuffle ? position : position % sequences_per_epoch());
}

std::vector<SequencePiece> PackedLoader::pieces(int64_t position) const {
  std::vector<SequencePiece> pieces;
  int64_t begin = 0;
  packing_.visit(
      sequence_at(position), [this](int64_t document) { return inputs(document); },
      [&](const Packing::Piece& piece) {
        const int64_t first =
            documents_.document(options_.first_document + piece.document).first_token + piece.first;
        const std::vector<SequencePiece> more = options_.stream->pieces({first, piece.count}, begin);
        pieces.insert(pieces.end(), more.begin(), more.end());
        begin += piece.count;
      });
  return pieces;
}

void PackedLoader::fetch(int64_t position, int64_t count, Sequences& out) const {
  const int64_t T = options_.sequence_length;
  out.tokens.resize(static_cast<size_t>(count * T));
  out.targets.resize(out.tokens.size());
  out.documents.resize(2 * out.tokens.size());
  for (int64_t i = 0; i < count; ++i) {
    const auto part = [&](std::vector<int32_t>& rows, int64_t values) {
      return std::span(rows).subspan(static_cast<size_t>(i * T * values), static_cast<size_t>(T * values));
    };
    fill(sequence_at(position + i), {.tokens = part(out.tokens, 1),
                                     .targets = part(out.targets, 1),
                                     .documents = part(out.documents, 2)});
  }
}

int64_t documents_to_train_on(const TokenStream& stream, double fraction) {
  check(fraction > 0 && fraction < 1, "the validation fraction must be between 0 and 1, found {}", fraction);
  const DocumentIndex& documents = documents_of(stream);
  check(
      documents.count() >= 2,
      "{} has one document, and whole documents are held out: name validation data with data.validation, or "
      "set data.documents=join",
      stream.path().string());
  const auto target = static_cast<double>(stream.size()) * (1 - fraction);
  const auto begin = [&](int64_t i) { return static_cast<double>(documents.document(i).first_token); };
  int64_t low = 1, high = documents.count() - 1;  // the first document that begins at `target` or after it
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (begin(middle) < target)
      low = middle + 1;
    else
      high = middle;
  }
  return low > 1 && target - begin(low - 1) < begin(low) - target ? low - 1 : low;
}

}  // namespace tessera
