#include "data/tokenizers/bpe_trainer.h"

#include "data/tokenizers/bpe_tokenizer.h"
#include "data/tokenizers/tokenizer_json.h"
#include "tests/data/tokenizers/support.h"

namespace tessera {
namespace {

using Counts = std::unordered_map<std::string, int64_t>;
using Tokens = std::vector<std::string>;

// The tokens that merges made, in their order
Tokens learned(const Counts& counts, const BpeTrainerOptions& options) {
  const TokenizerDefinition made = train_bpe(counts, options);
  return {made.tokens.begin() + 256 + std::ssize(options.special), made.tokens.end()};
}

TEST(BpeTrainer, TheMostFrequentPairIsFirst) {
  // "ab" 7, "bc" 5, then "abc" 5
  EXPECT_EQ(learned({{"abc", 5}, {"ab", 2}}, {.vocab_size = 300}), (Tokens{"ab", "abc"}));
  EXPECT_EQ(learned({{"abc", 5}, {"ab", 2}}, {.vocab_size = 257}), Tokens{"ab"});
  EXPECT_EQ(learned({{"abc", 5}, {"ab", 2}}, {.vocab_size = 300, .min_count = 6}), Tokens{"ab"});
}

TEST(BpeTrainer, OfEqualCountsTheSmallestIds) {
  // Ids follow the characters that stand for bytes: letters before the blank, U+0120.
  EXPECT_EQ(learned({{"ba", 3}, {"ab", 3}, {" a", 3}}, {.vocab_size = 300}), (Tokens{"ab", "ba", " a"}));
}

TEST(BpeTrainer, RepeatedLetters) {
  // Pairs that overlap count, as in Hugging Face's: "aaaa" has three.
  EXPECT_EQ(learned({{"aaaa", 2}, {"bc", 5}}, {.vocab_size = 300}), (Tokens{"aa", "bc", "aaaa"}));
}

TEST(BpeTrainer, NoTextBecomesASpecialToken) {
  const BpeTrainerOptions options{.vocab_size = 300, .special = {"<e>", "ab"}};
  const TokenizerDefinition made = train_bpe({{"abab", 9}}, options);
  EXPECT_EQ(made.added.size(), 2u);
  EXPECT_EQ(Tokens(made.tokens.begin() + 258, made.tokens.end()), (Tokens{"ba", "aba", "abab"}));
  const auto tokenizer = make_bpe_tokenizer(made, 0, "", "test");
  EXPECT_EQ(tokenizer->encode("ab").size(), 2u);
  EXPECT_EQ(tokenizer->encode("ab<e>", SpecialTokens::kMatched), (std::vector<int32_t>{1, 0}));
}

TEST(BpeTrainer, WhatItWritesIsReadAsTheSame) {
  PieceCounts counts(PreTokenizerKind::kGpt2);
  for (const char* page : {"docs/data.md", "docs/training.md", "README.md"})
    counts.add(read_file(std::filesystem::path(TESSERA_SOURCE_DIR) / page));
  counts.add("\xff\xfe" + random_bytes(1000, 1));
  for (const PreTokenizerKind kind : values_with_words<PreTokenizerKind>()) {
    const BpeTrainerOptions options{
        .kind = kind, .vocab_size = 600, .special = {"<|endoftext|>", "<\"a b\\>"}};
    const auto made = make_bpe_tokenizer(train_bpe(counts.counts(), options), 0, "", "made");
    EXPECT_EQ(made->vocab_size(), 600);
    const auto read = make_bpe_tokenizer(read_tokenizer_json(made->json(), "read"), 0, "", "read");
    EXPECT_EQ(read->name(), made->name());
    EXPECT_EQ(read->json(), made->json());
    const std::string bytes = random_bytes(2000, 2);
    EXPECT_EQ(read->encode(bytes), made->encode(bytes));
  }
}

TEST(BpeTrainer, PartsOfATextCountAsTheWhole) {
  PieceCounts whole(PreTokenizerKind::kQwen2), parts(PreTokenizerKind::kQwen2),
      more(PreTokenizerKind::kQwen2);
  whole.add("one two\u0301 three");
  parts.add("one");
  more.add(" two\u0301 three");
  parts.add(more);
  EXPECT_EQ(parts.counts(), whole.counts());
  EXPECT_TRUE(whole.counts().contains(" tw\u00f3"));
}

TEST(BpeTrainer, RefusesWhatHasNoRoom) {
  expect_error([] { train_bpe({}, {.vocab_size = 256, .special = {"<e>"}}); }, {"256 tokens", "no room"});
  expect_error([] { train_bpe({}, {.vocab_size = 300, .special = {"<e>", "<e>"}}); }, {"\"<e>\"", "twice"});
  expect_error([] { train_bpe({}, {.vocab_size = 300, .special = {"a"}}); }, {"\"a\"", "byte"});
  expect_error([] { train_bpe({}, {.vocab_size = 300, .special = {""}}); }, {"name", "empty"});
}

}  // namespace
}  // namespace tessera
