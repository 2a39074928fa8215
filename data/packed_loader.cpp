#include "data/packed_loader.h"

#include <algorithm>
#include <span>

#include "data/teacher_logits.h"
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
  check(!options.stream->documents()->has_pairs() ||
            (options.first_document % 2 == 0 && options.document_count % 2 == 0),
        "the documents of {} are pairs, and {} from {} on are not whole pairs",
        options.stream->path().string(), options.document_count, options.first_document);
  for (int64_t i = 0; options.answers && i < options.document_count; ++i)
    check(options.stream->documents()->label(options.first_document + i) != DocumentLabel::kNone,
          "document {} of {} has no label: every line needs \"label\": true or false",
          options.first_document + i, options.stream->path().string());
  return options;
}

}  // namespace

// Where a sequence goes
struct PackedLoader::Row {
  std::span<int32_t> tokens, targets;  // [T]
  std::span<int32_t> documents;        // [T, 2]
  std::span<int32_t> kinds;            // [T]; empty without pairs
  std::span<double> log_probs;         // [T]; empty: none are stored
  std::span<float> weights;            // [T]; empty: all are 1
  TeacherRecords teacher;              // [T]; empty: none are stored
};

PackedLoader::PackedLoader(const PackedLoaderOptions& options)
    : options_(checked(options)),
      documents_(documents_of(*options.stream)),
      packing_(pack()),
      order_(packing_.sequences(), options.seed, true) {}

int64_t PackedLoader::inputs_of_document(int64_t document) const {
  return documents_.document(document).token_count - 1;
}

int64_t PackedLoader::prompt_of(int64_t document) const {
  const TokenRange tokens = documents_.document(document);
  return std::min(documents_.uncounted_from(tokens.first_token), tokens.token_count);
}

PackedLoader::Mismatched PackedLoader::mismatched(int64_t document) const {
  const int64_t other = (document + documents_.count() - 1) % documents_.count(), skipped = prompt_of(other),
                prompt = prompt_of(document);
  const TokenRange tokens = documents_.document(other);
  return {.prompt = prompt,
          .answer = tokens.first_token + skipped,
          .inputs = std::max<int64_t>(prompt + tokens.token_count - skipped - 1, 0)};
}

int64_t PackedLoader::inputs(int64_t number) const {
  if (options_.answers) {
    const int64_t document = options_.first_document + number;
    return std::min(inputs_of_document(document) + mismatched(document).inputs, options_.sequence_length);
  }
  if (!has_pairs()) return inputs_of_document(options_.first_document + number);
  const int64_t chosen = options_.first_document + 2 * number;
  return std::min(inputs_of_document(chosen) + inputs_of_document(chosen + 1), options_.sequence_length);
}

std::vector<PackedLoader::Side> PackedLoader::sides(const Packing::Piece& piece) const {
  const auto first_of = [&](int64_t document) { return documents_.document(document).first_token; };
  const int64_t T = options_.sequence_length;
  const auto kept = [&](int64_t own, int64_t others) { return std::min(own, std::max(T / 2, T - others)); };
  if (options_.answers) {
    const int64_t document = options_.first_document + piece.document, own = inputs_of_document(document);
    const Mismatched other = mismatched(document);
    const auto kind = documents_.label(document) == DocumentLabel::kDesirable ? DocumentKind::kDesirable
                                                                              : DocumentKind::kUndesirable;
    return {{kind, document, first_of(document), kept(own, other.inputs)},
            {DocumentKind::kMismatched, document, first_of(document), kept(other.inputs, own), other.prompt,
             other.answer}};
  }
  if (!has_pairs())
    return {{DocumentKind::kPlain, options_.first_document + piece.document,
             first_of(options_.first_document + piece.document) + piece.first, piece.count}};
  const int64_t chosen = options_.first_document + 2 * piece.document;
  const int64_t a = inputs_of_document(chosen), b = inputs_of_document(chosen + 1);
  return {{DocumentKind::kChosen, chosen, first_of(chosen), kept(a, b)},
          {DocumentKind::kRejected, chosen + 1, first_of(chosen + 1), kept(b, a)}};
}

// A pair that is cut elsewhere has other tokens.
void PackedLoader::check_log_probs(const Side& side, int64_t counted) const {
  const LogProbs& stored = *options_.log_probs;
  const int32_t its = stored.tokens[log_prob_place(*options_.stream, side.document, side.kind)];
  if (its == counted) return;
  fail(
      "document {} of {} has {} tokens that count in sequences of {}, and its log-probability in {} is of "
      "{}, in sequences of {}: compute it again with ./evaluate {} --data {} --log-probs --sequence-length "
      "{}",
      side.document, options_.stream->path().string(), counted, options_.sequence_length,
      log_probs_file(*options_.stream).string(), its, stored.sequence_length, stored.model,
      options_.stream->path().string(), options_.sequence_length);
}

Packing PackedLoader::pack() {
  std::vector<int32_t> tokens, targets;
  const auto counted_of = [&](const Side& side) {
    targets.assign(static_cast<size_t>(side.count), 0);
    if (side.kind == DocumentKind::kMismatched) {
      tokens.resize(targets.size());
      read(side, tokens, targets);
    } else {
      documents_.drop_uncounted(side.first + 1, targets);
    }
    return counted(targets);
  };
  const auto counts = [&](int64_t number, int64_t first, int64_t count) {
    const std::vector<Side> all = sides({.document = number, .first = first, .count = count});
    std::vector<int64_t> of_sides;
    for (const Side& side : all) of_sides.push_back(counted_of(side));
    if (std::ranges::find(of_sides, 0) != of_sides.end()) return false;
    for (size_t i = 0; options_.log_probs && i < all.size(); ++i) check_log_probs(all[i], of_sides[i]);
    return true;
  };
  for (int64_t i = 0; has_pairs() && i < packed(); ++i) {
    const int64_t first = options_.first_document + (options_.answers ? i : 2 * i);
    const int64_t all = inputs_of_document(first) +
                        (options_.answers ? mismatched(first).inputs : inputs_of_document(first + 1));
    cut_pairs_ += all > options_.sequence_length ? 1 : 0;
  }
  return Packing({.documents = packed(),
                  .inputs = [this](int64_t number) { return inputs(number); },
                  .sequence_length = options_.sequence_length,
                  .seed = options_.seed,
                  .counts = counts});
}

TokenRange PackedLoader::range() const {
  const TokenRange first = documents_.document(options_.first_document);
  const TokenRange last = documents_.document(options_.first_document + options_.document_count - 1);
  return {first.first_token, last.first_token + last.token_count - first.first_token};
}

void PackedLoader::read(const Side& side, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  if (side.kind != DocumentKind::kMismatched) {
    options_.stream->read(side.first, tokens);
    options_.stream->read(side.first + 1, targets);
    documents_.drop_uncounted(side.first + 1, targets);
    return;
  }
  // Its tokens, one more than inputs, and what counts of them
  std::vector<int32_t> all(tokens.size() + 1);
  const auto prompt = std::min(static_cast<size_t>(side.prompt), all.size());
  options_.stream->read(side.first, std::span(all).first(prompt));
  options_.stream->read(side.answer, std::span(all).subspan(prompt));
  std::copy_n(all.begin(), tokens.size(), tokens.begin());
  std::ranges::fill(std::span(all).first(prompt), kNoTarget);
  documents_.drop_uncounted(side.answer, std::span(all).subspan(prompt));
  std::copy_n(all.begin() + 1, targets.size(), targets.begin());
}

std::vector<PackedLoader::PackedDocument> PackedLoader::documents_at(int64_t position) const {
  std::vector<PackedDocument> found;
  int64_t begin = 0;
  packing_.visit(
      sequence_at(position), [this](int64_t number) { return inputs(number); },
      [&](const Packing::Piece& piece) {
        for (const Side& side : sides(piece)) {
          found.push_back({side.kind, side.document, begin, side.count, side.first});
          begin += side.count;
        }
      });
  return found;
}

void PackedLoader::fill(int64_t sequence, const Row& row) const {
  size_t filled = 0;
  std::ranges::fill(row.log_probs, 0.0);
  std::ranges::fill(row.weights, 1.0f);
  std::ranges::fill(row.teacher.ids, 0);
  std::ranges::fill(row.teacher.values, 0.0f);
  const auto mark = [&](size_t begin, size_t end) {
    for (size_t t = begin; t < end; ++t) {
      row.documents[2 * t] = static_cast<int32_t>(begin);
      row.documents[2 * t + 1] = static_cast<int32_t>(end);
    }
  };
  const auto add = [&](const Side& side) {
    const auto count = static_cast<size_t>(side.count);
    read(side, row.tokens.subspan(filled, count), row.targets.subspan(filled, count));
    mark(filled, filled + count);
    if (!row.weights.empty() && side.kind != DocumentKind::kMismatched)
      documents_.take_weights(side.first + 1, row.weights.subspan(filled, count));
    if (!row.teacher.ids.empty()) {
      const size_t K = row.teacher.ids.size() / row.tokens.size();
      options_.teacher->take(side.document, side.first, row.targets.subspan(filled, count),
                             {row.teacher.ids.subspan(filled * K, count * K),
                              row.teacher.values.subspan(filled * (K + 1), count * (K + 1))});
    }
    if (!row.log_probs.empty())
      row.log_probs[filled] =
          options_.log_probs->sums[log_prob_place(*options_.stream, side.document, side.kind)];
    if (has_pairs()) std::ranges::fill(row.kinds.subspan(filled, count), static_cast<int32_t>(side.kind));
    filled += count;
  };
  packing_.visit(
      sequence, [this](int64_t number) { return inputs(number); },
      [&](const Packing::Piece& piece) { std::ranges::for_each(sides(piece), add); });
  std::ranges::fill(row.tokens.subspan(filled), 0);
  std::ranges::fill(row.targets.subspan(filled), kNoTarget);
  mark(filled, row.tokens.size());
  if (has_pairs()) std::ranges::fill(row.kinds.subspan(filled), static_cast<int32_t>(DocumentKind::kPlain));
}

int64_t PackedLoader::sequence_at(int64_t position) const {
  return order_.at(options_.shuffle ? position : position % sequences_per_epoch());
}

std::vector<SequencePiece> PackedLoader::pieces(int64_t position) const {
  std::vector<SequencePiece> pieces;
  int64_t begin = 0;
  packing_.visit(
      sequence_at(position), [this](int64_t number) { return inputs(number); },
      [&](const Packing::Piece& piece) {
        for (const Side& side : sides(piece)) {
          const int64_t own =
              side.kind == DocumentKind::kMismatched ? std::min(side.prompt, side.count) : side.count;
          for (const TokenRange& range : {TokenRange{side.first, own}, {side.answer, side.count - own}}) {
            const std::vector<SequencePiece> more = options_.stream->pieces(range, begin);
            pieces.insert(pieces.end(), more.begin(), more.end());
            begin += range.token_count;
          }
        }
      });
  return pieces;
}

std::vector<int64_t> PackedLoader::document_lengths(int64_t position) const {
  std::vector<int64_t> lengths;
  int64_t padding = options_.sequence_length;
  for (const PackedDocument& document : documents_at(position)) {
    lengths.push_back(document.count);
    padding -= document.count;
  }
  if (padding > 0) lengths.push_back(padding);
  return lengths;
}

void PackedLoader::fetch_at(std::span<const int64_t> positions, Sequences& out) const {
  const int64_t T = options_.sequence_length, count = std::ssize(positions);
  out.tokens.resize(static_cast<size_t>(count * T));
  out.targets.resize(out.tokens.size());
  out.documents.resize(2 * out.tokens.size());
  out.kinds.resize(has_pairs() ? out.tokens.size() : 0);
  out.log_probs.resize(options_.log_probs ? out.tokens.size() : 0);
  out.weights.resize(documents_.has_weights() ? out.tokens.size() : 0);
  const int64_t K = options_.teacher ? options_.teacher->facts().largest : 0;
  out.teacher_ids.resize(static_cast<size_t>(K) * out.tokens.size());
  out.teacher_logits.resize(K > 0 ? static_cast<size_t>(K + 1) * out.tokens.size() : 0);
  for (int64_t i = 0; i < count; ++i) {
    const auto part = [&](auto& rows, int64_t values) {
      return std::span(rows).subspan(static_cast<size_t>(i * T * values), static_cast<size_t>(T * values));
    };
    fill(sequence_at(positions[static_cast<size_t>(i)]),
         {.tokens = part(out.tokens, 1),
          .targets = part(out.targets, 1),
          .documents = part(out.documents, 2),
          .kinds = has_pairs() ? part(out.kinds, 1) : std::span<int32_t>(),
          .log_probs = options_.log_probs ? part(out.log_probs, 1) : std::span<double>(),
          .weights = documents_.has_weights() ? part(out.weights, 1) : std::span<float>(),
          .teacher = K > 0 ? TeacherRecords{part(out.teacher_ids, K), part(out.teacher_logits, K + 1)}
                           : TeacherRecords{}});
  }
}

int64_t documents_to_train_on(const TokenStream& stream, double fraction) {
  check(fraction > 0 && fraction < 1, "the validation fraction must be between 0 and 1, found {}", fraction);
  const DocumentIndex& documents = documents_of(stream);
  check(documents.count() >= (documents.has_pairs() ? 4 : 2),
        "{} has one document or pair, and whole documents are held out: name validation data with "
        "data.validation, or "
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
  const int64_t nearest = low > 1 && target - begin(low - 1) < begin(low) - target ? low - 1 : low;
  return documents.has_pairs() ? std::max<int64_t>(nearest / 2 * 2, 2) : nearest;
}

}  // namespace tessera
