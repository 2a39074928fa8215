// Patterns of windows over the blocks of a model, and what follows from them alone.
#include "model/attention_plans.h"
#include "model/kv_cache.h"
#include "model/rope.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

constexpr int64_t kFull = Windows::kFull;

std::vector<int64_t> of_blocks(const Windows& windows, size_t count) {
  std::vector<int64_t> all;
  for (size_t block = 0; block < count; ++block) all.push_back(windows.at(block));
  return all;
}

TEST(WindowPatterns, RepeatOverTheBlocks) {
  EXPECT_EQ(of_blocks(Windows(), 3), (std::vector{kFull, kFull, kFull}));
  EXPECT_EQ(of_blocks(Windows(7), 2), (std::vector<int64_t>{7, 7}));
  EXPECT_EQ(of_blocks(Windows({{5, 2}, {kFull}}), 7), (std::vector<int64_t>{5, 5, 0, 5, 5, 0, 5}));
  EXPECT_THROW(Windows(std::vector<Windows::Run>{}), Error);
  EXPECT_THROW(Windows(-1), Error);
  EXPECT_THROW(Windows({{5, 0}}), Error);
  EXPECT_THROW(Windows({{5, Windows::kMostBlocks}, {6}}), Error);
}

TEST(WindowPatterns, ThatMeanTheSameAreEqual) {
  EXPECT_EQ(Windows({{5}, {5, 3}}), Windows(5));
  EXPECT_EQ(Windows({{kFull, 4}}), Windows());
  EXPECT_EQ(Windows({{5}, {kFull}, {5}, {kFull}}), Windows({{5}, {kFull}}));
  EXPECT_NE(Windows({{5}, {kFull}, {5}}), Windows({{5}, {kFull}}));
  EXPECT_EQ(text_of(Windows({{5, 2}, {kFull}})), "5*2,full");
  EXPECT_EQ(text_of(Windows({{kFull, 3}, {5}})), "full*3,5");
  EXPECT_EQ(text_of(Windows()), "full");
  EXPECT_EQ(text_of(Windows(9)), "9");
}

TEST(WindowPatterns, AreTheShortestThatGiveTheWindowsOfAllBlocks) {
  for (const Windows& windows :
       {Windows(), Windows(4), Windows({{4, 5}, {kFull}}), Windows({{kFull, 3}, {4, 2}})})
    for (const size_t blocks : {6u, 7u, 12u, 26u}) {
      const std::vector<int64_t> all = of_blocks(windows, blocks);
      EXPECT_EQ(Windows::of_blocks(all), windows) << text_of(windows) << ", " << blocks;
    }
  // Of fewer blocks than the pattern has, what is there
  EXPECT_EQ(text_of(Windows::of_blocks({kFull, kFull, 4})), "full*2,4");
}

TEST(WindowPatterns, CountTheBlocksOfEachWindow) {
  for (const Windows& windows :
       {Windows(), Windows(4), Windows({{4, 5}, {kFull}}), Windows({{9}, {4}, {9, 2}, {kFull}})})
    for (int64_t blocks = 1; blocks < 20; ++blocks) {
      const std::vector<int64_t> all = of_blocks(windows, static_cast<size_t>(blocks));
      int64_t sum = 0, last = -1;
      for (const auto& [window, count] : windows.counts(blocks)) {
        EXPECT_EQ(count, std::ranges::count(all, window)) << text_of(windows) << ", " << blocks;
        EXPECT_GT(count, 0);
        EXPECT_LT(last, window);
        sum += count, last = window;
      }
      EXPECT_EQ(sum, blocks);
    }
}

// Pairs of a query and a key that it sees, the query's own key for a half, counted one by one
TEST(AttentionSpan, CountsTheVisiblePairsOfEachBlock) {
  ModelConfig model{.vocab_size = 61, .context = 64, .layers = 3, .heads = 2, .channels = 32};
  model.window = Windows({{5, 2}, {kFull}});
  for (const int64_t T : {1, 4, 5, 6, 40}) {
    double pairs = 0;
    for (size_t layer = 0; layer < 3; ++layer)
      for (int64_t query = 0; query < T; ++query) {
        const int64_t window = model.window.at(layer), before = query + 1;
        pairs += static_cast<double>(window == kFull ? before : std::min(before, window)) - 0.5;
      }
    const auto tokens = static_cast<double>(T);
    EXPECT_NEAR(model.attention_span(tokens), 2 * pairs / (3 * tokens), 1e-12 * tokens) << T;
  }
  ModelConfig full = model;
  full.window = {};
  EXPECT_EQ(full.attention_span(40), 40);
  // 6 FLOPs for each element of q k^T and of p v, of H D = C columns
  EXPECT_NEAR(full.flops_per_token(40) - model.flops_per_token(40),
              6.0 * 3 * 32 * (40 - model.attention_span(40)), 1e-6);
}

// A window of 5 sees the last 5 keys, of which a prompt needs the 4 before its first token.
TEST(AttentionPlansOfWindows, GiveAPromptTheKeysThatItSees) {
  ModelConfig model{.vocab_size = 61, .context = 64, .layers = 2, .heads = 2, .channels = 32};
  model.window = Windows({{5}, {kFull}});
  const auto shape_at = [&](int64_t start, size_t layer) {
    AttentionShape shape{
        .batch = 1, .tokens = 3, .heads = 2, .head_dim = 16, .mask = {}, .kv_tokens = start + 3};
    shape.mask.offset = start;
    return AttentionPlans(BlockKinds(model),
                          {.kind = AttentionKind::kFlash, .shape = shape, .dtype = DType::kF32, .device = {}})
        .of(layer)
        .shape;
  };
  for (const int64_t start : {0, 1, 2, 3, 4, 5, 30}) {
    const AttentionShape windowed = shape_at(start, 0), full = shape_at(start, 1);
    EXPECT_EQ(windowed.kv_tokens, std::min<int64_t>(start, 4) + 3) << start;
    EXPECT_EQ(windowed.mask.offset, windowed.kv_tokens - 3);
    EXPECT_EQ(windowed.mask.window, start < 3 ? 0 : 5) << "all keys are within the window";
    EXPECT_EQ(full.kv_tokens, start + 3);
    EXPECT_EQ(full.mask.window, 0);
  }
}

TEST(KvCacheOfWindows, HasAsManyRowsAsTheWindow) {
  ModelConfig model{.vocab_size = 61, .context = 64, .layers = 3, .heads = 4, .channels = 32, .kv_heads = 2};
  model.window = Windows({{5, 2}, {kFull}});
  EXPECT_EQ(kv_cache_bytes(model, DType::kBF16, 40), 2 * (5 + 5 + 40) * 2 * 8 * 2);
  EXPECT_EQ(kv_cache_bytes(model, DType::kBF16, 3), 2 * (3 + 3 + 3) * 2 * 8 * 2);
  Arena plan = Arena::plan(Device::kCpu);
  const KvCache cache = allocate_kv_cache(plan, model, DType::kF32, 7, 40);
  EXPECT_EQ(cache.capacity, 40);
  for (const auto& [layer, rows] : {std::pair{0, 5}, {1, 5}, {2, 40}}) {
    EXPECT_EQ(cache.layers[static_cast<size_t>(layer)].k.shape, (Shape{7, rows, 2, 8}));
    EXPECT_EQ(cache.layers[static_cast<size_t>(layer)].ring, rows < 40);
  }
  EXPECT_FALSE(allocate_kv_cache(plan, model, DType::kF32, 7, 5).layers[0].ring);
}

TEST(RingRuns, AreTheRowsOfTheLastTokens) {
  for (const int64_t rows : {1, 4, 5})
    for (int64_t end = 0; end < 13; ++end)
      for (int64_t tokens = 0; tokens <= std::min(rows, end); ++tokens) {
        std::vector<int64_t> found, expected;
        int runs = 0;
        for_each_run_of_ring(end, tokens, rows, [&](int64_t token, int64_t row, int64_t count) {
          EXPECT_EQ(token, std::ssize(found));
          EXPECT_LE(row + count, rows);
          for (int64_t i = 0; i < count; ++i) found.push_back(row + i);
          ++runs;
        });
        for (int64_t token = end - tokens; token < end; ++token) expected.push_back(token % rows);
        EXPECT_EQ(found, expected);
        EXPECT_LE(runs, 2);
      }
}

// Gemma 3's: the angles of blocks with a window have a base of their own, and no scaling.
TEST(LocalAngles, AreThoseOfAModelWithTheirBaseAndNoScaling) {
  ModelConfig model{.vocab_size = 61, .context = 64, .layers = 3, .heads = 2, .channels = 32};
  model.positions = Positions::kRope;
  model.rope = {.theta = 1e6, .local_theta = 1e4, .scaling = RopeScaling::kLinear, .factor = 8};
  model.window = Windows({{5, 2}, {kFull}});
  ModelConfig plain = model;
  plain.rope = {.theta = 1e4};
  CpuStream cpu;
  Arena arena = Arena::host();
  const Tensor local = allocate_local_angles(cpu, arena, model, {9}),
               of_plain = allocate_angles(cpu, arena, plain, {9}),
               global = allocate_angles(cpu, arena, model, {9});
  const auto values = [](const Tensor& t) {
    return std::vector<float>(t.as<float>(), t.as<float>() + t.numel());
  };
  EXPECT_EQ(values(local), values(of_plain));
  EXPECT_NE(values(local), values(global));
  model.rope.local_theta = 0;
  EXPECT_FALSE(allocate_local_angles(cpu, arena, model, {9}));
  model.rope.local_theta = 1e4, model.window = {};
  EXPECT_FALSE(allocate_local_angles(cpu, arena, model, {9}));
}

}  // namespace
}  // namespace tessera::testing
