// Mask, verb by verb, against every pair of a query and a key; masks are those of attention_reference.h.
#include "kernels/attention/mask.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "kernels/base/check.h"
#include "tests/attention_reference.h"

namespace tessera::attention {
namespace {

struct Sample {
  int queries, keys;
  test::MaskCase seen;

  Mask mask() const {
    return {.queries = queries,
            .keys = keys,
            .causal = seen.causal,
            .offset = static_cast<int>(seen.offset),
            .window = static_cast<int>(seen.window),
            .documents = seen.documents.empty() ? nullptr : seen.documents.data()};
  }
  bool sees(int query, int key) const { return seen.sees(query, query, key); }
  std::string text() const {
    return fmt::format("{} queries, {} keys, causal {}, window {}, offset {}, documents [{}]", queries, keys,
                       seen.causal, seen.window, seen.offset, fmt::join(seen.documents, " "));
  }
};

// The documents of `tokens` tokens in which a document ends after token t where bit t of `ends` is set
std::vector<int32_t> documents_with(uint32_t ends, int tokens) {
  std::vector<int32_t> cumulative = {0};
  for (int t = 0; t < tokens; ++t)
    if (t == tokens - 1 || (ends >> t & 1)) cumulative.push_back(t + 1);
  return test::documents_from(cumulative, 1, tokens);
}

std::vector<Sample> samples() {
  std::vector<Sample> all;
  for (const int queries : {1, 2, 5, 9})
    for (const int keys : {1, 3, 5, 9, 14}) {
      all.push_back({queries, keys, false});
      for (const int window : {0, 1, 2, 3, 6, 100})
        for (const int offset : {-100, -9, -4, -1, 0, 1, 3, 8, 13, 100})
          all.push_back({queries, keys, {true, window, offset}});
    }
  constexpr int kTokens = 7;
  for (uint32_t ends = 0; ends < 1U << (kTokens - 1); ++ends) {
    all.push_back({kTokens, kTokens, {false, documents_with(ends, kTokens)}});
    for (const int window : {0, 1, 2, 4, 100})
      all.push_back({kTokens, kTokens, {true, documents_with(ends, kTokens), window}});
  }
  return all;
}

// f(span) for every span inside that is not empty
template <class F>
void for_spans(int rows, F&& f) {
  for (int begin = 0; begin < rows; ++begin)
    for (int end = begin + 1; end <= rows; ++end) f(Span{begin, end});
}

TEST(Mask, KeysOfAQueryAreAnIntervalWhoseEndsDoNotFall) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.text());
    const Mask mask = sample.mask();
    Span before{0, 0};
    for (int query = 0; query < mask.queries; ++query) {
      const Span keys = mask.keys_of(query);
      ASSERT_LE(0, keys.begin);
      ASSERT_LE(keys.begin, keys.end);
      ASSERT_LE(keys.end, mask.keys);
      ASSERT_LE(before.begin, keys.begin);
      ASSERT_LE(before.end, keys.end);
      before = keys;
      for (int key = 0; key < mask.keys; ++key) {
        ASSERT_EQ(keys.contains(key), sample.sees(query, key)) << query << " " << key;
        ASSERT_EQ(mask.sees(query, key), sample.sees(query, key)) << query << " " << key;
      }
    }
  }
}

TEST(Mask, QueriesOfAKeyAreThoseThatSeeIt) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.text());
    const Mask mask = sample.mask();
    Span before{0, 0};
    for (int key = 0; key < mask.keys; ++key) {
      const Span queries = mask.queries_of(key);
      ASSERT_LE(0, queries.begin);
      ASSERT_LE(queries.begin, queries.end);
      ASSERT_LE(queries.end, mask.queries);
      ASSERT_LE(before.begin, queries.begin);
      ASSERT_LE(before.end, queries.end);
      before = queries;
      for (int query = 0; query < mask.queries; ++query)
        ASSERT_EQ(queries.contains(query), sample.sees(query, key)) << query << " " << key;
    }
  }
}

// The hull of what is seen; nothing is wasted where something is seen.
TEST(Mask, HullsOfTilesAreTight) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.text());
    const Mask mask = sample.mask();
    for_spans(mask.queries, [&](Span rows) {
      Span wanted{mask.keys, 0};
      for (int query = rows.begin; query < rows.end; ++query)
        for (int key = 0; key < mask.keys; ++key)
          if (sample.sees(query, key)) wanted = {std::min(wanted.begin, key), std::max(wanted.end, key + 1)};
      const Span hull = mask.keys_of(rows);
      ASSERT_EQ(hull.empty(), wanted.empty()) << rows.begin << " " << rows.end;
      if (!wanted.empty()) {
        ASSERT_EQ(hull, wanted) << rows.begin << " " << rows.end;
      }
    });
    for_spans(mask.keys, [&](Span columns) {
      Span wanted{mask.queries, 0};
      for (int key = columns.begin; key < columns.end; ++key)
        for (int query = 0; query < mask.queries; ++query)
          if (sample.sees(query, key))
            wanted = {std::min(wanted.begin, query), std::max(wanted.end, query + 1)};
      const Span hull = mask.queries_of(columns);
      ASSERT_EQ(hull.empty(), wanted.empty()) << columns.begin << " " << columns.end;
      if (!wanted.empty()) {
        ASSERT_EQ(hull, wanted) << columns.begin << " " << columns.end;
      }
    });
  }
}

TEST(Mask, ATileIsWholeWhereEveryQuerySeesEveryKey) {
  for (const Sample& sample : samples()) {
    SCOPED_TRACE(sample.text());
    const Mask mask = sample.mask();
    for_spans(mask.queries, [&](Span rows) {
      for_spans(mask.keys, [&](Span columns) {
        bool wanted = true;
        for (int query = rows.begin; query < rows.end; ++query)
          for (int key = columns.begin; key < columns.end; ++key) wanted &= sample.sees(query, key);
        ASSERT_EQ(mask.whole(rows, columns), wanted)
            << rows.begin << " " << rows.end << " " << columns.begin << " " << columns.end;
      });
    });
  }
}

TEST(Mask, TilesOfASpanAreThoseThatShareARow) {
  for (const int size : {1, 2, 3, 4, 7, 64})
    for (int begin = 0; begin <= 12; ++begin)
      for (int end = begin; end <= 12; ++end) {
        const Span tiles = Span{begin, end}.tiles(size);
        for (int tile = 0; tile < 13; ++tile) {
          const bool shares = std::max(begin, tile * size) < std::min(end, (tile + 1) * size);
          ASSERT_EQ(tiles.contains(tile), shares) << begin << " " << end << " " << size << " " << tile;
        }
      }
}

TEST(Mask, OfAnotherSequenceHasItsDocuments) {
  const std::vector<int32_t> documents = test::documents_from({0, 2, 7, 8, 12}, 3, 4);
  EXPECT_EQ(documents, (std::vector<int32_t>{0, 2, 0, 2, 2, 4, 2, 4,  //
                                             0, 3, 0, 3, 0, 3, 3, 4,  //
                                             0, 4, 0, 4, 0, 4, 0, 4}));
  const Mask first = {.queries = 4, .keys = 4, .causal = true, .documents = documents.data()};
  EXPECT_EQ(first.of_sequence(0).keys_of(3), (Span{2, 4}));
  EXPECT_EQ(first.of_sequence(1).keys_of(2), (Span{0, 3}));
  EXPECT_EQ(first.of_sequence(2).queries_of(1), (Span{1, 4}));
  const Mask none = {.queries = 4, .keys = 4, .causal = true};
  EXPECT_EQ(none.of_sequence(2).documents, nullptr);
}

TEST(Mask, IsPlainWithoutWindowOffsetDocumentsAndOtherKeys) {
  const int32_t document[] = {0, 1};
  EXPECT_TRUE((Mask{.queries = 1, .keys = 1}.plain()));
  EXPECT_TRUE((Mask{.queries = 1, .keys = 1, .causal = true}.plain()));
  EXPECT_FALSE((Mask{.queries = 1, .keys = 2, .causal = true}.plain()));
  EXPECT_FALSE((Mask{.queries = 1, .keys = 1, .causal = true, .offset = -1}.plain()));
  EXPECT_FALSE((Mask{.queries = 1, .keys = 1, .causal = true, .window = 1}.plain()));
  EXPECT_FALSE((Mask{.queries = 1, .keys = 1, .documents = document}.plain()));
}

// At the largest sizes that attention.h takes, sums of two of them leave int.
TEST(Mask, OfTheLargestSizes) {
  constexpr int kMost = 1 << 30;
  const Mask later = {.queries = kMost, .keys = kMost, .causal = true, .offset = kMost};
  EXPECT_EQ(later.keys_of(kMost - 1), (Span{0, kMost}));
  EXPECT_EQ(later.queries_of(0), (Span{0, kMost}));
  const Mask earlier = {.queries = kMost, .keys = kMost, .causal = true, .offset = -kMost, .window = kMost};
  EXPECT_TRUE(earlier.keys_of(Span{0, kMost}).empty());
  EXPECT_TRUE(earlier.queries_of(Span{0, kMost}).empty());
  const Mask window = {.queries = kMost, .keys = kMost, .causal = true, .offset = kMost, .window = kMost};
  EXPECT_EQ(window.keys_of(0), (Span{1, kMost}));
  EXPECT_TRUE(window.keys_of(kMost - 1).empty());
}

}  // namespace
}  // namespace tessera::attention
