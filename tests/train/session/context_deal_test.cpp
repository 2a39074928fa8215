// How tokens are dealt to the ranks of a context: every token once, equal work, and tables that say which
// keys each query sees, against their definition.
#include "train/session/context_deal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/documents.h"

namespace tessera::testing {
namespace {

const std::vector<SeenKeys> kWhole{SeenKeys{}};
constexpr int64_t kLengths[] = {1, 2, 5, 17, 64, 127, 128, 129, 1000, 4096, 8191};

TEST(ContextDeal, EveryTokenHasOnePlace) {
  for (const int64_t all : kLengths)
    for (const int64_t ranks : {2, 3, 5, 8}) {
      SCOPED_TRACE(fmt::format("{} tokens, {} ranks", all, ranks));
      const DealtShape shape{.ranks = ranks, .batch = 1, .all_tokens = all};
      const int64_t T = shape.tokens();
      const std::vector<int32_t> places = deal_tokens(shape, {});
      ASSERT_EQ(std::ssize(places), ranks * T);
      std::vector<int> seen(static_cast<size_t>(all));
      for (int64_t rank = 0; rank < ranks; ++rank)
        for (int64_t t = 0, last = -1; t < T; ++t) {
          const int32_t place = places[static_cast<size_t>(rank * T + t)];
          if (place == kNoPlace) {
            for (; t < T; ++t) ASSERT_EQ(places[static_cast<size_t>(rank * T + t)], kNoPlace);
            break;
          }
          ASSERT_GT(place, last);
          last = place;
          ++seen[static_cast<size_t>(place)];
        }
      for (const int count : seen) ASSERT_EQ(count, 1);
      EXPECT_LE(ranks * T - all, std::max(all / 64, ranks - 1)) << "padding";
    }
  EXPECT_EQ(dealt_tokens(12345, 1, kWhole), 12345);
  EXPECT_EQ(dealt_tokens(131072, 8, kWhole), 16384);
}

// The most work of a rank over the mean
double imbalance(std::span<const int32_t> documents, int64_t all, int64_t ranks,
                 const std::vector<SeenKeys>& kinds = kWhole) {
  const DealtShape shape{.ranks = ranks, .batch = 1, .all_tokens = all, .seen = kinds};
  const int64_t T = shape.tokens();
  const std::vector<int32_t> places = deal_tokens(shape, documents);
  std::vector<std::vector<std::vector<int64_t>>> lists;  // of each kind, of its query blocks
  for (const SeenKeys& kind : kinds) {
    std::vector<std::vector<int64_t>>& of_kind = lists.emplace_back();
    for (int64_t row = 0; kind.sparse && row * kind.sparse.block < all; ++row)
      of_kind.push_back(kind.sparse.keys_of(row));
  }
  std::vector<double> work(static_cast<size_t>(ranks));
  for (size_t i = 0; i < places.size(); ++i)
    if (const int32_t place = places[i]; place != kNoPlace) {
      const int64_t begin = documents.empty() ? 0 : documents[2 * static_cast<size_t>(place)];
      for (size_t k = 0; k < kinds.size(); ++k) {
        const auto& [window, sparse, blocks] = kinds[k];
        int64_t seen = place + 1 - begin;
        if (window != Windows::kFull) seen = std::min(seen, window);
        if (sparse) {
          seen = 0;
          for (const int64_t block : lists[k][static_cast<size_t>(place / sparse.block)])
            seen += std::max<int64_t>(0, std::min<int64_t>(place + 1, (block + 1) * sparse.block) -
                                             std::max(begin, block * sparse.block));
        }
        work[i / static_cast<size_t>(T)] += static_cast<double>(blocks * seen);
      }
    }
  const double mean = std::accumulate(work.begin(), work.end(), 0.0) / static_cast<double>(ranks);
  return *std::ranges::max_element(work) / mean;
}

TEST(ContextDeal, WorkIsEqual) {
  for (const int64_t ranks : {2, 3, 4, 8}) {
    EXPECT_LT(imbalance({}, 131072, ranks), 1.001) << ranks;
    EXPECT_LT(imbalance({}, 8192, ranks), 1.03) << ranks;
    for (const int64_t longest : {300, 5000, 100000}) {
      const std::vector<int32_t> documents = documents_of(random_documents(5, 1, 131072, longest));
      EXPECT_LT(imbalance(documents, 131072, ranks), 1.01) << ranks << " ranks, documents up to " << longest;
    }
    // Five blocks with a window to one without
    EXPECT_LT(imbalance({}, 131072, ranks, {{.blocks = 1}, {.window = 1024, .blocks = 5}}), 1.001) << ranks;
    EXPECT_LT(imbalance({}, 131072, ranks, {{.window = 1024, .blocks = 7}}), 1.005)
        << ranks;  // as many blocks, of unequal work
    // One long document among short ones: by length alone its rank would have most of the work.
    DocumentLengths one_long{{100000}};
    for (int64_t left = 131072 - 100000; left > 0; left -= 32) one_long[0].push_back(32);
    EXPECT_LT(imbalance(documents_of(one_long), 131072, ranks), 1.01) << ranks;
  }
}

const std::vector<SparsePattern> kPatterns{
    {.window = 8, .global = 1},
    {.window = 8, .global = 2, .stride = 8, .random = 4},
    {.window = 2, .global = 1, .stride = 4, .block = 512},
    {.window = 1, .random = 3, .seed = 7, .block = 256},
};

// With sparse blocks the deal does not ask where documents are, and is about equal all the same.
TEST(ContextDeal, WorkOfSparseBlocksIsEqual) {
  for (const SparsePattern& pattern : kPatterns)
    for (const int64_t ranks : {2, 3, 4, 8}) {
      SCOPED_TRACE(fmt::format("{}, {} ranks", SparseRun::text(pattern), ranks));
      const std::vector<SeenKeys> alone{{.sparse = pattern}},
          with_whole{{.blocks = 1}, {.sparse = pattern, .blocks = 3}, {.window = 1024, .blocks = 1}};
      for (const std::vector<SeenKeys>& kinds : {alone, with_whole}) {
        EXPECT_LT(imbalance({}, 131072, ranks, kinds), 1.005);
        // Of short documents all ranks have little work in attention.
        for (const int64_t longest : {300, 5000, 100000})
          EXPECT_LT(imbalance(documents_of(random_documents(5, 1, 131072, longest)), 131072, ranks, kinds),
                    longest == 300 ? 1.2 : 1.1)
              << "documents up to " << longest;
      }
    }
}

// Whole blocks, for lists; those of a longer sequence are those of a shorter one as far as it goes.
TEST(ContextDeal, RanksHaveWholeBlocksOfSparsePatterns) {
  std::vector<SeenKeys> seen{{.blocks = 2}};
  for (const SparsePattern& pattern : kPatterns) seen.push_back({.sparse = pattern});
  for (const int64_t ranks : {2, 3, 8}) {
    const DealtBlocks longest = dealt_blocks({.ranks = ranks, .batch = 1, .all_tokens = 20000, .seen = seen});
    ASSERT_EQ(longest.size, 128);
    ASSERT_EQ(std::ssize(longest.blocks) % ranks, 0);
    for (const int64_t all : {1025, 1100, 5000, 20000}) {
      SCOPED_TRACE(fmt::format("{} tokens, {} ranks", all, ranks));
      const DealtShape shape{.ranks = ranks, .batch = 1, .all_tokens = all, .seen = seen};
      const int64_t T = shape.tokens();
      ASSERT_EQ(T % 128, 0);
      ASSERT_LE(T * ranks, all + ranks * 128);
      const std::vector<int32_t> places = deal_tokens(shape, {});
      for (int64_t i = 0; i < ranks * T; ++i) {
        const int64_t token =
            longest.blocks[static_cast<size_t>(i % T / 128 * ranks + i / T)] * 128 + i % 128;
        ASSERT_EQ(places[static_cast<size_t>(i)], token < all ? token : kNoPlace) << i;
      }
    }
    // Patterns that hide nothing of a sequence do not change its division.
    const DealtShape small{.ranks = ranks, .batch = 1, .all_tokens = 128, .seen = seen};
    EXPECT_EQ(dealt_blocks(small).size, 0);
    EXPECT_EQ(small.tokens(), dealt_tokens(128, ranks, kWhole));
  }
}

struct DealtTables : ::testing::TestWithParam<int> {};

// The tables of every rank beside what they mean
void expect_tables(const DealtShape& shape, const SequencesView& sequences) {
  const int64_t T = shape.tokens(), all = shape.all_tokens;
  Dealt own;
  deal_batch(shape, sequences, own);
  ASSERT_EQ(std::ssize(own.numbers), shape.numbers());
  Batch batch;
  shape.set_tables({own.numbers.data(), DType::kI32, {shape.numbers()}, Device::kCpu}, batch);
  const auto table = [](const Tensor& tensor) { return tensor.as<int32_t>(); };
  for (int64_t b = 0; b < shape.batch; ++b)
    for (int64_t t = 0; t < T; ++t) {
      const int64_t n = b * T + t, from = own.from[static_cast<size_t>(n)];
      const bool real = from >= 0;
      ASSERT_EQ(own.tokens[static_cast<size_t>(n)], real ? sequences.tokens[static_cast<size_t>(from)] : 0);
      ASSERT_EQ(own.targets[static_cast<size_t>(n)],
                real ? sequences.targets[static_cast<size_t>(from)] : kNoTarget);
      if (real) {
        ASSERT_EQ(table(batch.places)[n], from - b * all);
        ASSERT_EQ(table(batch.positions)[n], position_in(sequences, from, all));
      }
      std::vector<Batch::Within> within = batch.within;
      within.insert(within.begin(), {Windows::kFull, batch.documents, batch.seen_by});
      for (int64_t key = 0; key < all; ++key) {
        const auto begin = [&](int64_t token) {
          return sequences.documents.empty() ? 0 : sequences.documents[static_cast<size_t>(2 * token)];
        };
        const bool visible = real && b * all + key <= from && begin(b * all + key) == begin(from);
        for (const auto& [window, documents, seen_by] : within) {
          const bool sees = visible && (window == Windows::kFull || from - (b * all + key) < window);
          const int32_t *keys = table(documents) + 2 * n, *queries = table(seen_by) + 2 * (b * all + key);
          ASSERT_EQ(keys[0] <= key && key < keys[1], sees) << window << " " << t << " " << key;
          ASSERT_EQ(queries[0] <= t && t < queries[1], sees) << window << " " << t << " " << key;
          // The kernels find what a tile sees from its first and its last row.
          ASSERT_TRUE(t == 0 || (keys[-2] <= keys[0] && keys[-1] <= keys[1])) << window << " " << t;
          ASSERT_TRUE(key == 0 || (queries[-2] <= queries[0] && queries[-1] <= queries[1]))
              << window << " " << key;
        }
      }
      const int64_t row = (shape.rank * shape.batch + b) * T + t;
      ASSERT_EQ(table(batch.context.scattered_rows)[row], real ? from : -1);
      if (real) {
        ASSERT_EQ(table(batch.context.gathered_rows)[from], row);
      }
    }
}

TEST_P(DealtTables, SayWhichKeysAQuerySees) {
  const int64_t ranks = GetParam();
  for (const int64_t all : {1, 3, 17, 67, 130})
    for (const int64_t longest : {int64_t{0}, int64_t{1}, int64_t{9}, all}) {
      const int64_t batch = 2;
      std::vector<int32_t> tokens(static_cast<size_t>(batch * all)), documents;
      std::iota(tokens.begin(), tokens.end(), 7);
      std::vector<int32_t> targets(tokens.begin(), tokens.end());
      targets[0] = kNoTarget;
      if (longest > 0) documents = documents_of(random_documents(3, batch, all, longest));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        SCOPED_TRACE(fmt::format("{} tokens, rank {} of {}, documents up to {}", all, rank, ranks, longest));
        const SequencesView sequences{.tokens = tokens, .targets = targets, .documents = documents};
        const DealtShape shape{.ranks = ranks, .rank = rank, .batch = batch, .all_tokens = all};
        expect_tables(shape, sequences);
        DealtShape windowed = shape;
        windowed.seen = {{.blocks = 1},
                         {.window = 1, .blocks = 3},
                         {.window = 5, .blocks = 2},
                         {.window = 100, .blocks = 1}};
        expect_tables(windowed, sequences);
        DealtShape listed = windowed;
        listed.seen.push_back({.sparse = {.window = 1, .random = 1, .block = 12}});
        listed.seen.push_back({.sparse = {.window = 2, .global = 1, .block = 8}});
        expect_tables(listed, sequences);
      }
    }
}

TEST(ContextDeal, RefusesOtherNumbers) {
  const DealtShape shape{.ranks = 2, .rank = 1, .batch = 2, .all_tokens = 9};
  const std::vector<int32_t> ids(18, 1), few(17, 1), documents(34, 0);
  const auto refusal = [&](const SequencesView& sequences) -> std::string {
    Dealt own;
    try {
      deal_batch(shape, sequences, own);
    } catch (const Error& error) {
      return error.what();
    }
    return "was not refused";
  };
  EXPECT_EQ(refusal({.tokens = ids, .targets = ids}), "was not refused");
  EXPECT_NE(refusal({.tokens = few, .targets = ids}).find("18 tokens and as many targets, found 17 and 18"),
            std::string::npos);
  EXPECT_NE(refusal({.tokens = ids, .targets = few}).find("found 18 and 17"), std::string::npos);
  EXPECT_NE(refusal({.tokens = ids, .targets = ids, .documents = documents}).find("36 numbers"),
            std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(, DealtTables, ::testing::Values(2, 3, 5));

}  // namespace
}  // namespace tessera::testing
