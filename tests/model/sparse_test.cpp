// Patterns of sparse blocks: how they are written, which pairs they show, and what follows from them alone.
#include "model/attention_plans.h"
#include "model/decode.h"
#include "tests/says.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

std::string refusal_of(std::string_view text) {
  try {
    read_sparse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SparsePatterns, AreReadAsTheyAreWritten) {
  for (const char* text : {"full", "window:8", "window:8+global:1", "window:3+global:2+random:3+seed:7",
                           "window:1+stride:16+block:256", "window:4,full", "window:4*3,full*2",
                           "window:4,window:4+random:1", "full*3,window:2"})
    EXPECT_EQ(text_of(read_sparse(text)), text);
  EXPECT_EQ(text_of(read_sparse("global:1+window:2")), "window:2+global:1") << "in any order";
  EXPECT_EQ(read_sparse("window:4,window:4*3"), read_sparse("window:4"));
  EXPECT_EQ(read_sparse("window:4+block:128"), read_sparse("window:4"));
  EXPECT_TRUE(read_sparse("full*7").all_full());
  const SparseBlocks banded = read_sparse("full,window:4");
  EXPECT_FALSE(banded.at(6));
  EXPECT_EQ(banded.at(7).window, 4);
  EXPECT_EQ(banded.counts(5).front().blocks, 3) << "the full ones come first";
}

TEST(SparsePatterns, RefuseWhatHasNoMeaning) {
  for (const char* bad : {"", "8", "window", "window:", "window:x", "window:2+", "+window:2", "window=2",
                          "windows:2", "window:2+global", "none", "window:2,,full", "window:1.5"})
    EXPECT_TRUE(says(refusal_of(bad), {"full", "window:N", "global:N", "block:N"})) << bad;
  EXPECT_TRUE(says(refusal_of("global:1+random:2"), {"global:1+random:2", "window:N", "window:1"}));
  EXPECT_TRUE(says(refusal_of("window:2+window:3"), {"window", "twice"}));
  EXPECT_TRUE(says(refusal_of("window:0"), {"window:0", "1"}));
  EXPECT_TRUE(says(refusal_of("window:2+stride:1"), {"stride:1", "2"}));
  EXPECT_TRUE(says(refusal_of("window:2+block:64"), {"block:64", "128"}));
  EXPECT_TRUE(says(refusal_of("window:2+block:192"), {"block:192", "power of two", "256"}));
  EXPECT_TRUE(says(refusal_of("window:2+seed:1"), {"seed:1", "random:N"}));
  for (const char* bad : {"window:2*0", "window:2*x", "window:2*2*2"})
    EXPECT_TRUE(says(refusal_of(bad), {"number of blocks", bad})) << bad;
  EXPECT_THROW(SparseBlocks(SparsePattern{.window = -1}), Error);
  EXPECT_THROW(SparseBlocks(SparsePattern{.global = 1}), Error);
  EXPECT_THROW(SparseBlocks(SparsePattern{.window = 1, .block = 0}), Error);
}

const SparsePattern kPatterns[] = {{.window = 2, .block = 4},
                                   {.window = 1, .global = 2, .block = 3},
                                   {.window = 1, .stride = 3, .block = 4},
                                   {.window = 2, .global = 1, .random = 2, .seed = 9, .block = 5}};

TEST(SparsePatterns, ShowTheirOwnBlockAndNoLaterOne) {
  for (const SparsePattern& p : kPatterns)
    for (int64_t row = 0; row < 20; ++row) {
      const std::vector<int64_t> keys = p.keys_of(row);
      EXPECT_EQ(keys.back(), row);
      EXPECT_TRUE(std::ranges::is_sorted(keys)) << row;
      EXPECT_EQ(std::ranges::adjacent_find(keys), keys.end());
      int64_t by_rule = 0;
      for (int64_t j = 0; j <= row; ++j) {
        const bool shown = row - j < p.window || j < p.global || (p.stride > 0 && (row - j) % p.stride == 0);
        by_rule += shown;
        EXPECT_TRUE(!shown || std::ranges::count(keys, j) == 1) << row << " " << j;
      }
      EXPECT_EQ(std::ssize(keys), std::min(row + 1, by_rule + p.random));
    }
}

bool shows(const SparsePattern& p, int64_t query, int64_t key) {
  return key <= query && std::ranges::count(p.keys_of(query / p.block), key / p.block) > 0;
}

TEST(SparsePatterns, CountThePairsThatTheyShow) {
  for (const SparsePattern& p : kPatterns)
    for (const auto& [begin, end] : {std::pair{0, 1}, {0, 4}, {0, 37}, {5, 6}, {3, 29}, {12, 40}}) {
      double pairs = 0;
      for (int64_t query = begin; query < end; ++query)
        for (int64_t key = begin; key <= query; ++key) pairs += shows(p, query, key);
      EXPECT_EQ(p.pairs(begin, end), pairs) << SparseRun::text(p) << " " << begin << " " << end;
    }
  EXPECT_EQ(SparsePattern{}.pairs(10), 55);
  // Of chosen blocks: each query its own block up to itself, and as many whole ones as there are up to two
  const SparsePattern chosen{.block = 4, .chosen = 3};
  for (const int64_t tokens : {1, 4, 9, 12, 13, 40}) {
    double pairs = 0;
    for (int64_t t = 0; t < tokens; ++t) pairs += static_cast<double>(t % 4 + 1 + 4 * std::min<int64_t>(2, t / 4));
    EXPECT_EQ(chosen.pairs(7, 7 + tokens), pairs) << "blocks begin with the document";
  }
}

// Of a model with a window, a pattern and a block that sees all
TEST(AttentionSpan, CountsTheVisiblePairsOfSparseBlocks) {
  ModelConfig model{.vocab_size = 61, .context = 64, .layers = 5, .heads = 2, .channels = 32};
  model.window = Windows({{5}, {Windows::kFull}, {Windows::kFull}});
  model.sparse = SparseBlocks({{.pattern = {}}, {.pattern = kPatterns[3]}, {.pattern = {}}});
  for (const auto& [begin, end] : {std::pair{0, 40}, {7, 31}, {0, 3}}) {
    double pairs = 0;
    for (size_t layer = 0; layer < 5; ++layer)
      for (int64_t query = begin; query < end; ++query)
        for (int64_t key = begin; key <= query; ++key) {
          const int64_t window = model.window.at(layer);
          const SparsePattern pattern = model.sparse.at(layer);
          const bool seen =
              (window == Windows::kFull || query - key < window) && (!pattern || shows(pattern, query, key));
          pairs += seen ? query == key ? 0.5 : 1 : 0;
        }
    EXPECT_NEAR(model.attention_span(begin, end), 2 * pairs / (5 * (end - begin)), 1e-9);
  }
  EXPECT_EQ(model.attention_span(40.0), model.attention_span(0, 40));
}

TEST(AttentionPlansOfSparseBlocks, HaveListsWhereTheyHideSomething) {
  ModelConfig model{.vocab_size = 61, .context = 64, .layers = 3, .heads = 2, .channels = 32};
  const SparsePattern pattern{.window = 2, .global = 1, .block = 4};
  model.sparse = SparseBlocks({{.pattern = pattern, .blocks = 2}, {.pattern = {}}});
  CpuStream cpu;
  Arena arena = Arena::host();
  const SparseLists lists(cpu, arena, model, 40);
  const BlockShape shape = pattern.lists(40).shape();
  EXPECT_EQ(arena.ledger().current_bytes(), (4 * shape.numbers() + 255) / 256 * 256)
      << "once for both blocks";
  EXPECT_EQ(lists.numbers_of(pattern).numel(), shape.numbers());
  const auto plans = [&](int64_t start, int64_t tokens) {
    AttentionShape all{
        .batch = 1, .tokens = tokens, .heads = 2, .head_dim = 16, .mask = {}, .kv_tokens = start + tokens};
    all.mask.offset = start;
    return AttentionPlans(BlockKinds(model),
                          {.kind = AttentionKind::kFlash, .shape = all, .dtype = DType::kF32, .device = {}},
                          lists);
  };
  EXPECT_EQ(plans(0, 8).of(0).shape.mask.blocks.size, 0) << "two blocks of four tokens see all";
  const AttentionPlans whole = plans(0, 40), later = plans(12, 9), within = plans(13, 9);
  EXPECT_EQ(whole.of(1).shape.mask.blocks.size, 4);
  EXPECT_EQ(whole.of(1).shape.mask.blocks.causal_pairs, pattern.pairs(40));
  EXPECT_EQ(whole.of(2).shape.mask.blocks.size, 0);
  EXPECT_EQ(later.of(0).shape.mask.blocks.causal_pairs, pattern.pairs(21) - pattern.pairs(12));
  EXPECT_FALSE(later.decode_of(0));
  ASSERT_TRUE(within.decode_of(0)) << "a prompt that begins within a block";
  EXPECT_TRUE(within.decode_of(0)->shape.one_cache);
  EXPECT_EQ(within.decode_of(0)->shape.batch, 9);
  EXPECT_EQ(within.decode_of(0)->shape.capacity, 22);
  EXPECT_FALSE(within.decode_of(2));
  EXPECT_THROW(plans(0, 41), Error) << "longer than the lists";
}

TEST(SparsePrompts, EndAtABlockIfTheyBeginWithinOne) {
  ModelConfig model{.vocab_size = 61, .context = 64, .layers = 2, .heads = 2, .channels = 32};
  EXPECT_EQ(prompt_tokens_at_once(model, 3, 100), 100);
  model.sparse =
      SparseBlocks({{.pattern = {.window = 2, .block = 4}}, {.pattern = {.window = 2, .block = 16}}});
  EXPECT_EQ(prompt_tokens_at_once(model, 0, 100), 100);
  EXPECT_EQ(prompt_tokens_at_once(model, 32, 100), 100);
  EXPECT_EQ(prompt_tokens_at_once(model, 20, 100), 12);
  EXPECT_EQ(prompt_tokens_at_once(model, 20, 5), 5);
}

TEST(BlockSpecs, HaveAWindowOrSparseBlocks) {
  ModelConfig model{.vocab_size = 61, .context = 64, .layers = 2, .heads = 2, .channels = 32};
  model.window = Windows({{5}, {Windows::kFull}});
  model.sparse = read_sparse("full,window:2");
  EXPECT_EQ(block_spec(model, 1).sparse.window, 2);
  model.sparse = read_sparse("window:2");
  EXPECT_THROW(block_spec(model, 0), Error);
}

}  // namespace
}  // namespace tessera::testing
