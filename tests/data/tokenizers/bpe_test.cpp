#include "data/tokenizers/bpe.h"

#include <limits>

#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

// Merges by the definition: looks at every pair before each merge.
std::vector<int32_t> merged_naively(const TokenizerDefinition& definition, std::string_view piece) {
  std::vector<int32_t> tokens;
  while (!piece.empty()) {
    const size_t bytes = definition.byte_level ? 1 : first_code_point(piece)->bytes;
    tokens.push_back(static_cast<int32_t>(std::ranges::find(definition.tokens, piece.substr(0, bytes)) -
                                          definition.tokens.begin()));
    piece.remove_prefix(bytes);
  }
  while (true) {
    size_t best = std::numeric_limits<size_t>::max(), place = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i)
      for (size_t rank = 0; rank < std::min(best, definition.merges.size()); ++rank)
        if (definition.merges[rank].left == tokens[i] && definition.merges[rank].right == tokens[i + 1]) {
          best = rank;
          place = i;
        }
    if (best == std::numeric_limits<size_t>::max()) return tokens;
    tokens[place] = definition.merges[best].result;
    tokens.erase(tokens.begin() + static_cast<int64_t>(place) + 1);
  }
}

// Random merges over few letters, so that pieces have many ways to be merged.
TokenizerDefinition random_merges(uint64_t seed, const std::vector<std::string>& letters = {"a", "b", "c"},
                                  size_t count = 60) {
  std::mt19937_64 random(seed);
  TokenizerDefinition made;
  made.tokens = letters;
  while (made.tokens.size() < count) {
    const auto left = static_cast<int32_t>(random() % made.tokens.size());
    const auto right = static_cast<int32_t>(random() % made.tokens.size());
    const std::string token =
        made.tokens[static_cast<size_t>(left)] + made.tokens[static_cast<size_t>(right)];
    if (std::ranges::find(made.tokens, token) != made.tokens.end()) continue;
    made.merges.push_back({left, right, static_cast<int32_t>(made.tokens.size())});
    made.tokens.push_back(token);
  }
  std::ranges::shuffle(made.merges, random);  // a merge may come before those of its parts
  return made;
}

TEST(Bpe, MergesAsDefined) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const TokenizerDefinition made = random_merges(seed);
    const Bpe bpe(made, "test");
    Bpe::Cache cache;
    std::mt19937_64 random(seed);
    for (size_t length : {1u, 2u, 3u, 5u, 7u, 8u, 9u, 16u, 30u, 31u, 32u, 33u, 64u, 300u})
      for (int i = 0; i < 10; ++i) {
        std::string piece;
        while (piece.size() < length) piece += static_cast<char>('a' + random() % 3);
        for (int again = 0; again < 2; ++again) {  // the second time from the cache
          std::vector<int32_t> ids;
          bpe.encode(piece, cache, ids);
          EXPECT_EQ(ids, merged_naively(made, piece)) << piece;
        }
      }
  }
}

// Few merges, so that there are borders, where a piece is cut
TEST(Bpe, MergesOfCharactersAsDefined) {
  const std::vector<std::string> letters{"a", "b", "\u00e9", "\u2581", "\u4e2d", "\U0001f600"};
  int64_t parts = 0, pieces = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    TokenizerDefinition made = random_merges(seed, letters, 10 + seed % 20);
    made.byte_level = false;
    const Bpe bpe(made, "test");
    ASSERT_TRUE(bpe.borders().known());
    Bpe::Cache cache;
    std::mt19937_64 random(seed);
    for (size_t length : {1u, 2u, 3u, 5u, 9u, 16u, 33u, 100u, 300u}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i) piece += letters[random() % letters.size()];
      ++pieces;
      bpe.borders().cut(piece, [&](std::string_view) { ++parts; });
      for (int again = 0; again < 2; ++again) {  // the second time from the cache
        std::vector<int32_t> ids;
        bpe.encode(piece, cache, ids);
        EXPECT_EQ(ids, merged_naively(made, piece)) << piece;
      }
    }
  }
  EXPECT_GT(parts, 5 * pieces);
}

TEST(Bpe, NoBordersWhereACutMayChangeTokens) {
  TokenizerDefinition made;
  made.byte_level = false;
  made.tokens = {"a", "b", "ab", "<0xC3>", "<0xA9>", "<0xC3><0xA9>", "<unk>"};
  made.merges = {{.left = 0, .right = 1, .result = 2}};
  made.byte_fallback = true;
  EXPECT_TRUE(Bpe(made, "test").borders().known());
  EXPECT_FALSE(Bpe(made, "test").borders().between('a', 'b'));
  EXPECT_TRUE(Bpe(made, "test").borders().between('b', 'a'));
  EXPECT_FALSE(Bpe(made, "test").borders().between('b', 'x')) << "x is left out";
  made.unknown = 6;
  EXPECT_TRUE(Bpe(made, "test").borders().between('b', 'x'));
  EXPECT_FALSE(Bpe(made, "test").borders().between('x', 'a')) << "an unknown token may come later";
  made.merges.push_back({.left = 3, .right = 4, .result = 5});
  EXPECT_FALSE(Bpe(made, "test").borders().known()) << "tokens of bytes are merged";
  made.merges.pop_back();
  made.ignore_merges = true;
  EXPECT_FALSE(Bpe(made, "test").borders().known());
}

TEST(Bpe, TheCacheTellsPiecesApart) {
  TokenizerDefinition made;
  for (int byte = 0; byte < 256; ++byte) made.tokens.emplace_back(1, static_cast<char>(byte));
  const Bpe bpe(made, "test");
  Bpe::Cache cache;
  // Zeros at the end, and more pieces than it keeps.
  for (int round = 0; round < 2; ++round)
    for (uint64_t i = 0; i < 100'000; ++i) {
      std::string piece = random_bytes(i % 7, i) + std::string(i % 5, '\0');
      std::vector<int32_t> ids;
      bpe.encode(piece, cache, ids);
      EXPECT_TRUE(
          std::ranges::equal(ids, piece, {}, {}, [](char c) { return static_cast<unsigned char>(c); }));
    }
}

TEST(Bpe, APieceThatIsATokenMayGoBeforeMerges) {
  TokenizerDefinition made;
  made.tokens = {"a", "b", "c", "abc", std::string(40, 'a')};
  for (const bool ignore : {false, true}) {
    made.ignore_merges = ignore;
    const Bpe bpe(made, "test");
    Bpe::Cache cache;
    std::vector<int32_t> ids;
    for (const std::string& piece : {std::string("abc"), std::string(40, 'a'), std::string("cab")})
      bpe.encode(piece, cache, ids);
    EXPECT_EQ(ids.size(), ignore ? 5u : 46u);
  }
}

TEST(Bpe, RefusesWhatItCannotMerge) {
  TokenizerDefinition made = random_merges(1);
  made.merges.push_back(made.merges[3]);
  expect_error([&] { Bpe(made, "a.json"); }, {"a.json: ", "merges 3 and 57"});
  made.merges.pop_back();
  const Bpe bpe(made, "a.json");
  EXPECT_EQ(bpe.symbols().bytes_without_token(), 253);
  Bpe::Cache cache;
  std::vector<int32_t> ids;
  for (const std::string& text : {std::string("abcx"), std::string(50, 'a') + "x"})
    expect_error([&] { bpe.encode(text, cache, ids); }, {"the byte 0x78", "no token"});
}

// Those beside a byte that is left out are neighbours, and are merged; whether the piece was met before or
// not.
TEST(Bpe, LeavesOutBytesWithoutAToken) {
  for (const bool ignore : {false, true}) {
    TokenizerDefinition made = random_merges(1);
    made.ignore_merges = ignore;
    const Bpe bpe(made, "a.json");
    Bpe::Cache cache;
    for (const std::string& text : {std::string("abc"), std::string("abcabcaacb"), std::string(60, 'a')}) {
      std::vector<int32_t> wanted, found;
      int64_t none = 0, left_out = 0;
      bpe.encode(text, cache, wanted, &none);
      EXPECT_EQ(none, 0);
      for (const std::string& with : {"x" + text, text + "yy", text.substr(0, 2) + "\x04" + text.substr(2)})
        for (int i = 0; i < 2; ++i) {
          found.clear();
          left_out = 0;
          bpe.encode(with, cache, found, &left_out);
          EXPECT_EQ(left_out, std::ssize(with) - std::ssize(text));
          if (!ignore) {
            EXPECT_EQ(found, wanted) << with;
          }
          expect_error([&] { bpe.encode(with, cache, found); }, {"no token"});
        }
    }
    std::vector<int32_t> ids;
    int64_t left_out = 0;
    for (const std::string& text : {std::string("xyz"), std::string(50, 'x')})
      bpe.encode(text, cache, ids, &left_out);
    EXPECT_TRUE(ids.empty());
    EXPECT_EQ(left_out, 53);
  }
}

}  // namespace
}  // namespace tessera
