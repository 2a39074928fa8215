// Packing, the loader of packed sequences, and mixtures of sources.
#include "data/packing.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "data/document_index.h"
#include "data/mixture.h"
#include "data/packed_loader.h"
#include "data/shard.h"
#include "kernels/base/no_target.h"
#include "tests/data/support.h"

namespace tessera {
namespace {

using PackedPiece = Packing::Piece;

Packing pack(const std::vector<int64_t>& inputs, int64_t T, uint64_t seed = 1) {
  return Packing({.documents = std::ssize(inputs),
                  .inputs = [&](int64_t i) { return inputs[static_cast<size_t>(i)]; },
                  .sequence_length = T,
                  .seed = seed});
}

std::vector<std::vector<PackedPiece>> sequences_of(const Packing& packing,
                                                   const std::vector<int64_t>& inputs) {
  std::vector<std::vector<PackedPiece>> found(static_cast<size_t>(packing.sequences()));
  for (size_t i = 0; i < found.size(); ++i)
    packing.visit(
        static_cast<int64_t>(i), [&](int64_t d) { return inputs[static_cast<size_t>(d)]; },
        [&](const PackedPiece& piece) { found[i].push_back(piece); });
  return found;
}

std::vector<int64_t> log_normal(int64_t count, double median, double sigma, uint64_t seed = 7) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> length(std::log(median), sigma);
  std::vector<int64_t> inputs(static_cast<size_t>(count));
  for (int64_t& n : inputs) n = static_cast<int64_t>(length(random));
  return inputs;
}

// Every input of every document once, and no sequence longer than T, whatever the lengths.
TEST(Packing, HasEveryInputOnceAndKeepsDocumentsWhole) {
  std::mt19937_64 random(3);
  for (const int64_t T : {1, 2, 7, 63, 64, 65, 100, 4096, 5000})
    for (const int64_t longest : {int64_t{1}, T / 2 + 1, T, T + 1, 3 * T + 1}) {
      SCOPED_TRACE(fmt::format("T {}, documents up to {}", T, longest));
      std::vector<int64_t> inputs(300);
      for (int64_t& n : inputs) n = static_cast<int64_t>(random() % static_cast<uint64_t>(longest + 1));
      inputs[17] = longest;
      const Packing packing = pack(inputs, T);
      std::vector<std::vector<PackedPiece>> of_document(inputs.size());
      int64_t total = 0;
      for (const auto& sequence : sequences_of(packing, inputs)) {
        int64_t filled = 0;
        for (const PackedPiece& piece : sequence) {
          ASSERT_GE(piece.count, 1);
          filled += piece.count;
          of_document[static_cast<size_t>(piece.document)].push_back(piece);
        }
        ASSERT_GE(filled, 1);
        ASSERT_LE(filled, T);
        total += filled;
      }
      for (size_t d = 0; d < inputs.size(); ++d) {
        auto& pieces = of_document[d];
        std::ranges::sort(pieces, {}, &PackedPiece::first);
        int64_t end = 0;
        for (const PackedPiece& piece : pieces) {
          ASSERT_EQ(piece.first, end) << "document " << d;
          end += piece.count;
        }
        ASSERT_EQ(end, inputs[d]);
        ASSERT_EQ(std::ssize(pieces), (inputs[d] + T - 1) / T);  // no more than needed: whole if it fits
      }
      const auto count = [&](auto is) { return std::ranges::count_if(inputs, is); };
      const PackingFigures& figures = packing.figures();
      EXPECT_EQ(figures.documents, count([](int64_t n) { return n > 0; }));
      EXPECT_EQ(figures.empty, count([](int64_t n) { return n == 0; }));
      EXPECT_EQ(figures.cut, count([&](int64_t n) { return n > T; }));
      EXPECT_EQ(figures.inputs, total);
      EXPECT_DOUBLE_EQ(figures.padding,
                       1 - static_cast<double>(total) / static_cast<double>(packing.sequences() * T));
    }
}

// Each piece goes where the least room is left: compared with a search over all sequences.
TEST(Packing, IsBestFitDecreasing) {
  std::mt19937_64 random(5);
  for (const int64_t T : {10, 64, 200}) {
    std::vector<int64_t> inputs(500);
    for (int64_t& n : inputs) n = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(T - 1));
    std::vector<int64_t> sorted = inputs, filled;
    std::ranges::sort(sorted, std::greater());
    for (const int64_t n : sorted) {
      auto best = filled.end();
      for (auto one = filled.begin(); one != filled.end(); ++one)
        if (*one + n <= T && (best == filled.end() || *one > *best)) best = one;
      if (best == filled.end())
        filled.push_back(n);
      else
        *best += n;
    }
    std::vector<int64_t> found;
    for (const auto& sequence : sequences_of(pack(inputs, T), inputs)) {
      found.push_back(0);
      for (const PackedPiece& piece : sequence) found.back() += piece.count;
    }
    std::ranges::sort(found);
    std::ranges::sort(filled);
    EXPECT_EQ(found, filled);
  }
}

TEST(Packing, DependsOnLengthsAndSeedAlone) {
  const std::vector<int64_t> inputs = log_normal(2000, 100, 1);
  EXPECT_EQ(pack(inputs, 512, 4).checksum(), pack(inputs, 512, 4).checksum());
  EXPECT_EQ(sequences_of(pack(inputs, 512, 4), inputs), sequences_of(pack(inputs, 512, 4), inputs));
  EXPECT_NE(pack(inputs, 512, 4).checksum(), pack(inputs, 512, 5).checksum());
  EXPECT_NE(pack(inputs, 512, 4).checksum(), pack(inputs, 513, 4).checksum());
  std::vector<int64_t> others = inputs;
  others[1000] += 1;
  EXPECT_NE(pack(inputs, 512, 4).checksum(), pack(others, 512, 4).checksum());
}

// What resumed runs rely on: a change here breaks the reproduction of every earlier run.
TEST(Packing, IsTheSameForever) {
  const std::vector<int64_t> inputs = {3, 5, 0, 12, 2, 2, 7, 1, 6};
  EXPECT_EQ(sequences_of(pack(inputs, 8, 42), inputs),
            (std::vector<std::vector<PackedPiece>>{{{3, 0, 8}},
                                                   {{6, 0, 7}, {7, 0, 1}},
                                                   {{8, 0, 6}, {4, 0, 2}},
                                                   {{1, 0, 5}, {0, 0, 3}},
                                                   {{3, 8, 4}, {5, 0, 2}}}));
}

// Neighbours are often alike, and of like length: they should not share sequences.
TEST(Packing, NeighboursAreApart) {
  const std::vector<int64_t> inputs(1000, 10);
  int64_t neighbours = 0;
  for (const auto& sequence : sequences_of(pack(inputs, 20), inputs))
    neighbours += std::abs(sequence[0].document - sequence[1].document) == 1;
  EXPECT_LT(neighbours, 10);  // 1 expected of 500
}

TEST(Packing, PadsLittle) {
  for (const int64_t T : {1024, 4096, 32768})
    for (const double sigma : {0.5, 1.0, 1.5}) {
      const std::vector<int64_t> inputs = log_normal(20000, 500, sigma);
      EXPECT_LT(pack(inputs, T).figures().padding, 0.02) << T << ", " << sigma;
    }
}

TEST(Packing, OfAMillionDocumentsTakesSeconds) {
  const std::vector<int64_t> inputs = log_normal(1'000'000, 500, 1.2);
  const auto before = std::chrono::steady_clock::now();
  const Packing packing = pack(inputs, 4096);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(10));
  EXPECT_LT(packing.figures().padding, 0.01);
}

TEST(Packing, LeavesOutPiecesWithoutCountedTargets) {
  const std::vector<int64_t> inputs = {25, 4, 5, 6, 30};
  const Packing packing(
      {.documents = 5,
       .inputs = [&](int64_t i) { return inputs[static_cast<size_t>(i)]; },
       .sequence_length = 10,
       .counts = [](int64_t document, int64_t first,
                    int64_t) { return (document != 0 || first != 10) && document != 2 && document != 4; }});
  std::vector<PackedPiece> found;
  for (const auto& sequence : sequences_of(packing, inputs))
    found.insert(found.end(), sequence.begin(), sequence.end());
  std::ranges::sort(found, {}, [](const PackedPiece& p) { return std::pair(p.document, p.first); });
  EXPECT_EQ(found, (std::vector<PackedPiece>{{0, 0, 10}, {0, 20, 5}, {1, 0, 4}, {3, 0, 6}}));
  EXPECT_EQ(packing.figures().uncounted, 5);
  EXPECT_EQ(packing.figures().first_uncounted, (std::vector<int64_t>{0, 2, 4}));
  EXPECT_EQ(packing.figures().documents, 3);
}

TEST(Packing, RefusesWhatIsNoSequence) {
  expect_error([] { pack({1, 2}, 0); }, {"sequence length", "found 0"});
  expect_error([] { pack({0, 0, 0}, 4); }, {"of 3 documents", "3 have one token"});
  expect_error([] { pack({}, 4); }, {"of 0 documents"});
  expect_error([] { Packing({.documents = int64_t{1} << 32, .sequence_length = 4}); },
               {"4294967296 documents", "several sources"});
}

class PackedLoaderTest : public InTempFolder {
 protected:
  // Token i of the stream is i; shards of 50 tokens, so that documents cross borders.
  TokenStream stream_of(const std::vector<int64_t>& lengths,
                        const std::vector<TokenRange>& uncounted = {}) const {
    ShardWriter shards({.folder = folder_, .tokens_per_shard = 50});
    DocumentIndexWriter index({.folder = folder_, .tokens_per_shard = 50});
    DocumentMarks marks{.starts = {}, .uncounted = uncounted};
    int64_t tokens = 0;
    for (const int64_t length : lengths) marks.starts.push_back(std::exchange(tokens, tokens + length));
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    std::iota(ids.begin(), ids.end(), 0);
    shards.append(ids);
    index.append(tokens, marks);
    shards.finish();
    index.finish();
    return TokenStream::open(folder_);
  }
};

Sequences fetch(const SequenceSource& source, int64_t position, int64_t count) {
  Sequences sequences;
  source.fetch(position, count, sequences);
  return sequences;
}

TEST_F(PackedLoaderTest, EveryPairOfInputAndTargetOnceAnEpoch) {
  const std::vector<int64_t> lengths = {5, 1, 40, 17, 2, 16, 18, 33, 9, 9, 3, 1, 60};
  const TokenStream stream = stream_of(lengths, {{20, 10}, {100, 3}});
  constexpr int64_t T = 16;
  const PackedLoader loader({.stream = &stream,
                             .first_document = 1,
                             .document_count = std::ssize(lengths) - 1,
                             .sequence_length = T,
                             .seed = 3});
  EXPECT_EQ(loader.range(), (TokenRange{5, stream.size() - 5}));
  std::set<int32_t> wanted;  // inputs: all tokens but the last of each document
  int32_t at = 0;
  for (const int64_t length : lengths) {
    for (int32_t i = 0; i + 1 < length; ++i)
      if (at >= 5) wanted.insert(at + i);
    at += static_cast<int32_t>(length);
  }
  const auto uncounted = [](int32_t token) {
    return (token >= 20 && token < 30) || (token >= 100 && token < 103);
  };
  const int64_t n = loader.sequences_per_epoch();
  for (const int64_t epoch : {0, 1, 5}) {
    const Sequences all = fetch(loader, epoch * n, n);
    std::set<int32_t> seen;
    ASSERT_EQ(std::ssize(all.documents), 2 * n * T);
    for (int64_t b = 0; b < n; ++b)
      for (int64_t t = 0; t < T;) {
        const auto i = static_cast<size_t>(b * T + t);
        const int32_t begin = all.documents[2 * i], end = all.documents[2 * i + 1];
        ASSERT_EQ(begin, t);
        ASSERT_GT(end, begin);
        ASSERT_LE(end, T);
        const bool padding = end == T && all.tokens[i] == 0;  // token 0 is not in the range
        for (; t < end; ++t) {
          const auto j = static_cast<size_t>(b * T + t);
          ASSERT_EQ(all.documents[2 * j], begin);
          ASSERT_EQ(all.documents[2 * j + 1], end);
          if (padding) {
            ASSERT_EQ(all.tokens[j], 0);
            ASSERT_EQ(all.targets[j], kNoTarget);
            continue;
          }
          ASSERT_EQ(all.tokens[j], all.tokens[i] + static_cast<int32_t>(j - i));
          ASSERT_EQ(all.targets[j], uncounted(all.tokens[j] + 1) ? kNoTarget : all.tokens[j] + 1);
          ASSERT_TRUE(seen.insert(all.tokens[j]).second);
        }
      }
    EXPECT_EQ(seen, wanted);
  }
}

TEST_F(PackedLoaderTest, TheSamePositionIsTheSameData) {
  std::vector<int64_t> lengths = log_normal(200, 12, 1);
  for (int64_t& length : lengths) ++length;
  const TokenStream stream = stream_of(lengths, {{20, 10}});
  const PackedLoaderOptions options{
      .stream = &stream, .first_document = 0, .document_count = 200, .sequence_length = 32, .seed = 9};
  const PackedLoader loader(options);
  const int64_t n = loader.sequences_per_epoch();
  const Sequences whole = fetch(loader, 0, 3 * n);
  const PackedLoader resumed(options);
  const auto part = [](const std::vector<int32_t>& all, int64_t first, int64_t count) {
    return std::vector<int32_t>(all.begin() + first, all.begin() + first + count);
  };
  for (int64_t position = 3 * n - 2; position >= 0; position -= 2) {
    const Sequences two = fetch(resumed, position, 2);
    ASSERT_EQ(two.tokens, part(whole.tokens, position * 32, 64));
    ASSERT_EQ(two.targets, part(whole.targets, position * 32, 64));
    ASSERT_EQ(two.documents, part(whole.documents, position * 64, 128));
  }
  EXPECT_NE(fetch(loader, 0, n), fetch(loader, n, n));
  PackedLoaderOptions fixed = options;
  fixed.shuffle = false;
  EXPECT_EQ(fetch(PackedLoader(fixed), 0, n), fetch(PackedLoader(fixed), n, n));
  EXPECT_EQ(fetch(PackedLoader(fixed), 0, n), fetch(loader, 0, n));
  expect_error([&] { fetch(loader, -1, 1); }, {"negative"});
}

TEST_F(PackedLoaderTest, HoldsOutWholeDocuments) {
  const TokenStream stream = stream_of({10, 20, 30, 20, 10, 10});
  EXPECT_EQ(documents_to_train_on(stream, 0.1), 5);
  EXPECT_EQ(documents_to_train_on(stream, 0.2), 4);
  EXPECT_EQ(documents_to_train_on(stream, 0.26), 4);
  EXPECT_EQ(documents_to_train_on(stream, 0.34), 3);
  EXPECT_EQ(documents_to_train_on(stream, 0.0001), 5);  // at least one
  EXPECT_EQ(documents_to_train_on(stream, 0.9999), 1);  // not all
  expect_error([&] { documents_to_train_on(stream, 1); }, {"between 0 and 1"});
}

TEST_F(PackedLoaderTest, RefusesWhatHasNoDocuments) {
  write("plain.bin", shard_bytes({1, 2, 3, 4}));
  const TokenStream plain = TokenStream::open(folder_ / "plain.bin");
  expect_error([&] { PackedLoader({.stream = &plain, .document_count = 1, .sequence_length = 2}); },
               {"plain.bin", "./prepare", "data.documents=join"});
  std::filesystem::remove(folder_ / "plain.bin");
  const TokenStream one = stream_of({10});
  expect_error([&] { documents_to_train_on(one, 0.5); }, {"one document", "data.validation"});
  expect_error([&] { PackedLoader({.stream = &one, .document_count = 2, .sequence_length = 2}); },
               {"documents 0 to 1", "has 1"});
  expect_error([] { PackedLoader({.document_count = 1, .sequence_length = 2}); }, {"needs a token stream"});
}

// A source of sequences of one token: its number and the position
struct Numbered : SequenceSource {
  std::vector<SequencePiece> pieces(int64_t) const override { return {}; }
  Numbered(int32_t number, int64_t sequences) : number(number), sequences(sequences) {}
  int64_t sequences_per_epoch() const override { return sequences; }
  std::vector<int64_t> document_lengths(int64_t) const override { return {1}; }
  void fetch_at(std::span<const int64_t> positions, Sequences& out) const override {
    out.tokens.clear();
    for (const int64_t position : positions)
      out.tokens.push_back(number * 1'000'000 + static_cast<int32_t>(position));
    out.targets = out.tokens;
    out.documents.clear();
  }
  int32_t number;
  int64_t sequences;
};

Mixture mixture_of(const std::vector<double>& weights) {
  std::vector<Mixture::Part> parts;
  for (size_t i = 0; i < weights.size(); ++i)
    parts.push_back(
        {std::make_unique<Numbered>(static_cast<int32_t>(i), 10 * (std::ssize(parts) + 1)), weights[i]});
  return Mixture(std::move(parts));
}

// Each part's positions in order, none left out; and every beginning of the mixture is near to the shares.
TEST(MixtureTest, GivesEachSourceItsShareEvenly) {
  for (const std::vector<double>& weights :
       {std::vector<double>{1}, {0.7, 0.3}, {1, 2, 4}, {1e-3, 1}, {0.1, 0.2, 0.3, 0.4}, {std::sqrt(2), 1}}) {
    const Mixture mixture = mixture_of(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<int64_t> next(weights.size(), 0);
    for (int64_t position = 0; position < 25'000; ++position) {
      const auto [part, at] = mixture.place(position);
      ASSERT_EQ(at, next[static_cast<size_t>(part)]++);
      for (size_t i = 0; i < weights.size(); ++i)
        ASSERT_NEAR(static_cast<double>(next[i]), weights[i] / sum * static_cast<double>(position + 1), 2.5)
            << "after " << position + 1;
    }
  }
}

TEST(MixtureTest, HasExactSharesInTheSmallestBlock) {
  const Mixture mixture = mixture_of({0.7, 0.3});
  std::map<int64_t, int64_t> times;
  for (int64_t position = 0; position < 10; ++position) ++times[mixture.place(position).part];
  EXPECT_EQ(times, (std::map<int64_t, int64_t>{{0, 7}, {1, 3}}));
  EXPECT_EQ(mixture_of({7, 3}).place(123'456'789'012), mixture.place(123'456'789'012));
  EXPECT_EQ(mixture.place(1'000'000'000'000), (Mixture::Place{0, 700'000'000'000}));
}

TEST(MixtureTest, FetchesFromItsSourcesByPositionAlone) {
  const Mixture mixture = mixture_of({2, 1});
  EXPECT_EQ(fetch(mixture, 0, 6).tokens, (std::vector<int32_t>{0, 1'000'000, 1, 2, 1'000'001, 3}));
  for (int64_t position = 0; position < 30; ++position)
    EXPECT_EQ(fetch(mixture, position, 1).tokens[0],
              fetch(mixture, 0, 30).tokens[static_cast<size_t>(position)]);
  EXPECT_EQ(mixture.sequences_per_epoch(), 30);
}

TEST(MixtureTest, RefusesWhatHasNoShare) {
  expect_error([] { mixture_of({}); }, {"one source"});
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL})
    expect_error([&] { mixture_of({1, bad}); }, {"above 0"});
  expect_error([] { mixture_of({1, 1e-6}); }, {"1e-06", "10000 sequences"});
  expect_error([] { mixture_of({1, 2}).place(-1); }, {"negative"});
}

}  // namespace
}  // namespace tessera
