#include "data/document_index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "data/shard.h"
#include "kernels/base/check.h"
#include "kernels/base/no_target.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "tessdocs";
constexpr uint32_t kVersion = 1;

constexpr uint32_t kPairs = 1, kLabels = 2, kWeights = 4;

struct IndexHeader {
  char magic[8];
  uint32_t version;
  uint32_t uses;  // kPairs, kLabels, kWeights
  int64_t first_token, tokens, documents, runs;
};
static_assert(sizeof(IndexHeader) == 48);

// The byte behind the lists that every index has, and labels
int64_t end_of_lists(const IndexHeader& header) {
  const int64_t of_document = header.uses & kLabels ? 8 : 4;
  return static_cast<int64_t>(sizeof(IndexHeader)) + of_document * header.documents + 8 * header.runs;
}

IndexHeader read_header(const MappedFile& file, int64_t tokens) {
  const std::string path = file.path().string();
  const auto bytes = std::ssize(file.bytes());
  IndexHeader header{};
  if (bytes > 0)
    std::memcpy(&header, file.bytes().data(), std::min(file.bytes().size(), sizeof(IndexHeader)));
  const std::string again = "copy the folder again or prepare it again with ./prepare";
  check(bytes >= std::ssize(kMagic) && std::string_view(header.magic, sizeof header.magic) == kMagic,
        "{} is not an index of documents: it does not begin with \"{}\"; {}", path, kMagic, again);
  check(bytes >= std::ssize(kMagic) + 4 && header.version == kVersion,
        "the index of documents {} has version {}, expected {}; {}", path, header.version, kVersion, again);
  check(bytes >= static_cast<int64_t>(sizeof(IndexHeader)),
        "the index of documents {} is truncated: its header takes {} bytes, found {}; {}", path,
        sizeof(IndexHeader), bytes, again);
  check(header.tokens == tokens,
        "the index of documents {} is for a shard of {} tokens, and the shard beside it has {}; {}", path,
        header.tokens, tokens, again);
  check(header.uses < 2 * kWeights && (header.uses & (kPairs | kLabels)) != (kPairs | kLabels) &&
            header.first_token >= 0 && header.first_token <= std::numeric_limits<int64_t>::max() - tokens &&
            header.documents >= 0 && header.documents <= tokens && header.runs >= 0 && header.runs <= tokens,
        "the index of documents {} is damaged: it says {} documents and {} runs from token {} on, for {} "
        "tokens; {}",
        path, header.documents, header.runs, header.first_token, tokens, again);
  const int64_t lists = end_of_lists(header);
  uint32_t weights = 0;
  if ((header.uses & kWeights) && bytes >= lists + 4) std::memcpy(&weights, file.bytes().data() + lists, 4);
  const int64_t expected = lists + (header.uses & kWeights ? 4 + 12 * int64_t{weights} : 0);
  check(bytes == expected, "the index of documents {} is {}: expected {} bytes, found {}; {}", path,
        bytes < expected ? "truncated" : "longer than its header says", expected, bytes, again);
  return header;
}

template <class T>
std::span<const T> list_at(const MappedFile& file, int64_t byte, int64_t count) {
  return {reinterpret_cast<const T*>(file.bytes().data() + byte), static_cast<size_t>(count)};
}

}  // namespace

fs::path document_index_of(const fs::path& shard) { return fs::path(shard).replace_extension(".documents"); }

void DocumentIndex::add_shard(const fs::path& shard, int64_t tokens) {
  const fs::path path = document_index_of(shard);
  check(fs::exists(path),
        "{} is missing: shards of this data set have an index of documents beside them; "
        "copy the folder again or prepare it again with ./prepare",
        path.string());
  MappedFile file(path);
  const IndexHeader header = read_header(file, tokens);
  const auto starts = list_at<uint32_t>(file, sizeof(IndexHeader), header.documents);
  const auto runs =
      list_at<Run>(file, static_cast<int64_t>(sizeof(IndexHeader)) + 4 * header.documents, header.runs);
  const int64_t lists = static_cast<int64_t>(sizeof(IndexHeader)) + 4 * header.documents + 8 * header.runs;
  const auto labels = list_at<uint32_t>(file, lists, header.uses & kLabels ? header.documents : 0);
  std::span<const Weight> weights;
  if (header.uses & kWeights) {
    const int64_t at = end_of_lists(header);
    weights = list_at<Weight>(file, at + 4, list_at<uint32_t>(file, at, 1)[0]);
  }
  for (const uint32_t label : labels)
    check(label <= static_cast<uint32_t>(DocumentLabel::kNone),
          "the index of documents {} is damaged: a document has the label {}", path.string(), label);
  int64_t previous = -1;
  for (const uint32_t start : starts) {
    check(
        start > previous && start < tokens,
        "the index of documents {} is damaged: a document begins with token {}, after one with token {},  in "
        "a shard of {} tokens",
        path.string(), start, previous, tokens);
    previous = start;
  }
  int64_t end = -1;
  for (const auto& [first, count] : runs) {
    check(
        first > end && count > 0 && int64_t{first} + count <= tokens,
        "the index of documents {} is damaged: {} tokens from {} on do not count, after {}, in a shard of {} "
        "tokens",
        path.string(), count, first, end, tokens);
    end = int64_t{first} + count;
    uncounted_ += count;
  }
  end = -1;
  for (const auto& [first, count, weight] : weights) {
    check(
        first >= end && count > 0 && int64_t{first} + count <= tokens && std::isfinite(weight) && weight > 0,
        "the index of documents {} is damaged: {} tokens from {} on have the weight {}, after {}, in a shard "
        "of {} tokens",
        path.string(), count, first, weight, end, tokens);
    end = int64_t{first} + count;
  }
  const bool follows = !parts_.empty() && parts_.back().follows == header.first_token;
  const bool pairs = header.uses & kPairs;
  check(parts_.empty() || pairs == pairs_,
        "{} has {}, and the shards before it have not: name the shards of one data set", path.string(),
        pairs ? "pairs of documents" : "documents that are no pairs");
  check(!pairs || follows || header.first_token == 0,
        "{} has pairs of documents, and may begin within one: name all shards of its data set",
        path.string());
  pairs_ = pairs;
  labels_ = labels_ || !labels.empty();
  weights_ = weights_ || !weights.empty();
  const bool begins = !follows && (starts.empty() || starts[0] != 0);
  parts_.push_back({.file = std::move(file),
                    .first_token = tokens_,
                    .tokens = tokens,
                    .follows = header.first_token + tokens,
                    .first_document = count_,
                    .begins = begins,
                    .starts = starts,
                    .runs = runs,
                    .labels = labels,
                    .weights = weights});
  count_ += std::ssize(starts) + (begins ? 1 : 0);
  tokens_ += tokens;
}

int64_t DocumentIndex::start_of(int64_t i) const {
  if (i == count_) return tokens_;
  // The last part whose documents begin at or before i. Parts in which none begins share the number of the
  // one after them, which is the last of these.
  const Part& part = *(std::ranges::upper_bound(parts_, i, {}, &Part::first_document) - 1);
  const int64_t at = i - part.first_document - (part.begins ? 1 : 0);
  return part.first_token + (at < 0 ? 0 : int64_t{part.starts[static_cast<size_t>(at)]});
}

TokenRange DocumentIndex::document(int64_t i) const {
  check(0 <= i && i < count_, "there is no document {}: the stream has {}", i, count_);
  const int64_t first = start_of(i);
  return {first, start_of(i + 1) - first};
}

DocumentLabel DocumentIndex::label(int64_t i) const {
  check(0 <= i && i < count_, "there is no document {}: the stream has {}", i, count_);
  const Part& part = *(std::ranges::upper_bound(parts_, i, {}, &Part::first_document) - 1);
  const int64_t at = i - part.first_document - (part.begins ? 1 : 0);
  if (at < 0 || part.labels.empty()) return DocumentLabel::kNone;
  return static_cast<DocumentLabel>(part.labels[static_cast<size_t>(at)]);
}

int64_t DocumentIndex::uncounted_from(int64_t token) const {
  check(0 <= token && token < tokens_, "there is no token {}: the stream has {}", token, tokens_);
  int64_t count = 0;
  auto part = std::ranges::upper_bound(parts_, token, {}, &Part::first_token) - 1;
  for (; part != parts_.end(); ++part) {
    const int64_t at = token + count - part->first_token;
    const auto run = std::ranges::lower_bound(part->runs, at, {},
                                              [](const Run& r) { return int64_t{r.first} + r.count - 1; });
    if (run == part->runs.end() || run->first > at) break;
    const int64_t end = int64_t{run->first} + run->count;
    count += end - at;
    if (end < part->tokens) break;  // else the next shard may go on with one
  }
  return count;
}

int64_t DocumentIndex::document_of(int64_t token) const {
  check(0 <= token && token < tokens_, "there is no token {}: the stream has {}", token, tokens_);
  int64_t low = 0, high = count_ - 1;  // the last document that begins at or before it
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    start_of(middle) <= token ? low = middle : high = middle - 1;
  }
  return low;
}

template <class T, class OnRun>
void DocumentIndex::visit_runs(std::span<const T> Part::*list, int64_t first, int64_t last,
                               const OnRun& on_run) const {
  check(0 <= first && last <= tokens_, "the tokens {} to {} are not all in the stream, which has {}", first,
        last - 1, tokens_);
  if (first == last) return;
  auto part = std::ranges::upper_bound(parts_, first, {}, &Part::first_token) - 1;
  for (; part != parts_.end() && part->first_token < last; ++part) {
    const int64_t from = first - part->first_token, to = last - part->first_token;  // tokens of the shard
    const std::span<const T> runs = (*part).*list;
    auto run =
        std::ranges::lower_bound(runs, from, {}, [](const T& r) { return int64_t{r.first} + r.count - 1; });
    for (; run != runs.end() && run->first < to; ++run)
      on_run(*run, static_cast<size_t>(std::max<int64_t>(run->first, from) - from),
             static_cast<size_t>(std::min(int64_t{run->first} + run->count, to) - from));
  }
}

void DocumentIndex::drop_uncounted(int64_t first, std::span<int32_t> targets) const {
  visit_runs(&Part::runs, first, first + std::ssize(targets), [&](const Run&, size_t begin, size_t end) {
    std::ranges::fill(targets.subspan(begin, end - begin), kNoTarget);
  });
}

void DocumentIndex::take_weights(int64_t first, std::span<float> weights) const {
  std::ranges::fill(weights, 1.0f);
  visit_runs(&Part::weights, first, first + std::ssize(weights),
             [&](const Weight& run, size_t begin, size_t end) {
               std::ranges::fill(weights.subspan(begin, end - begin), run.weight);
             });
}

std::vector<const MappedFile*> DocumentIndex::files() const {
  std::vector<const MappedFile*> files;
  for (const Part& part : parts_) files.push_back(&part.file);
  return files;
}

void DocumentIndexWriter::append(int64_t tokens, const DocumentMarks& marks, bool pairs) {
  pairs_ = pairs;
  const int64_t size = options_.tokens_per_shard;
  auto start = marks.starts.begin();
  auto run = marks.uncounted.begin();
  auto weight = marks.weights.begin();
  int64_t done_of_run = 0;
  for (int64_t at = 0; at < tokens;) {
    const int64_t count = std::min(tokens - at, size - shard_tokens_), end = at + count;
    const int64_t shift = shard_tokens_ - at;  // from tokens of this call to tokens of the shard
    for (; start != marks.starts.end() && *start < end; ++start) {
      starts_.push_back(static_cast<uint32_t>(*start + shift));
      const auto i = static_cast<size_t>(start - marks.starts.begin());
      labels_.push_back(static_cast<uint32_t>(marks.labels.empty() ? DocumentLabel::kNone : marks.labels[i]));
    }
    while (run != marks.uncounted.end() && run->first_token + done_of_run < end) {
      const int64_t first = run->first_token + done_of_run;
      const int64_t here = std::min(run->token_count - done_of_run, end - first);
      add_run(first + shift, here);
      done_of_run += here;
      if (done_of_run < run->token_count) break;
      ++run;
      done_of_run = 0;
    }
    for (; weight != marks.weights.end() && weight->first_token < end; ++weight) {
      const int64_t first = std::max(weight->first_token, at),
                    last = std::min(weight->first_token + weight->token_count, end);
      add_weight(first + shift, last - first, static_cast<float>(weight->weight));
      if (weight->first_token + weight->token_count > end) break;  // the next shard goes on with it
    }
    shard_tokens_ += count;
    at = end;
    if (shard_tokens_ == size) write_shard();
  }
}

void DocumentIndexWriter::add_run(int64_t first, int64_t count) {
  uncounted_ += count;
  if (!runs_.empty() && int64_t{runs_[runs_.size() - 2]} + runs_.back() == first) {
    runs_.back() += static_cast<uint32_t>(count);
  } else {
    runs_.insert(runs_.end(), {static_cast<uint32_t>(first), static_cast<uint32_t>(count)});
  }
}

void DocumentIndexWriter::add_weight(int64_t first, int64_t count, float weight) {
  const auto bits = std::bit_cast<uint32_t>(weight);
  if (const size_t n = weights_.size();
      n > 0 && weights_[n - 1] == bits && int64_t{weights_[n - 3]} + weights_[n - 2] == first) {
    weights_[n - 2] += static_cast<uint32_t>(count);
  } else {
    weights_.insert(weights_.end(), {static_cast<uint32_t>(first), static_cast<uint32_t>(count), bits});
  }
}

void DocumentIndexWriter::write_shard() {
  const bool labels = std::ranges::any_of(
      labels_, [](uint32_t label) { return label != static_cast<uint32_t>(DocumentLabel::kNone); });
  IndexHeader header{.magic = {},
                     .version = kVersion,
                     .uses = (pairs_   ? kPairs
                              : labels ? kLabels
                                       : 0U) |
                             (weights_.empty() ? 0U : kWeights),
                     .first_token = shards_ * options_.tokens_per_shard,
                     .tokens = shard_tokens_,
                     .documents = std::ssize(starts_),
                     .runs = std::ssize(runs_) / 2};
  std::ranges::copy(kMagic, header.magic);
  const fs::path path = document_index_of(options_.folder / shard_name(options_.prefix, shards_));
  OutputFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(std::as_bytes(std::span(starts_)));
  file.write(std::as_bytes(std::span(runs_)));
  if (header.uses & kLabels) file.write(std::as_bytes(std::span(labels_)));
  if (const auto runs = static_cast<uint32_t>(weights_.size() / 3); runs > 0) {
    file.write(std::as_bytes(std::span(&runs, 1)));
    file.write(std::as_bytes(std::span(weights_)));
  }
  checksums_[path.filename().string()] = file.commit();
  starts_.clear();
  runs_.clear();
  labels_.clear();
  weights_.clear();
  shard_tokens_ = 0;
  ++shards_;
}

void DocumentIndexWriter::finish() {
  if (shard_tokens_ > 0) write_shard();
}

}  // namespace tessera
