// The largest score of each head on CUDA: against fp64, which sees every mask in its own way, and the weights
// of heads that are clipped, against the CPU to the bit.
#include "tests/largest_scores.h"

#include "kernels/base/ordered_float.h"
#include "kernels/score_ops.h"
#include "tests/cuda/twin.h"
#include "tests/random_blocks.h"

namespace tessera {
namespace {

class CudaLargestScores : public CudaTest {
 protected:
  struct Problem {
    test::AttentionCase c;
    DType dtype = DType::kBF16;
    bool packed = false;  // q and k in one tensor, with values behind
  };

  void expect_fp64(const Problem& problem) {
    const test::AttentionCase& c = problem.c;
    SCOPED_TRACE(
        fmt::format("{} B {} T {} keys {} H {} K {} D {} causal {} window {} offset {} documents {} dealt {} "
                    "alibi {} cap {} blocks {}x{}",
                    name_of(problem.dtype), c.batch, c.tokens, c.kv_tokens, c.heads, c.kv_heads, c.head_dim,
                    c.mask.causal, c.mask.window, c.mask.offset, !c.mask.documents.empty(),
                    !c.mask.seen_by.empty(), c.alibi_heads, c.cap, c.blocks.size, c.blocks.lists));
    const int64_t all = problem.packed ? c.heads + 2 * c.kv_heads : c.heads;
    const Twin q = input(problem.dtype, {c.batch, c.tokens, all, c.head_dim}, 2),
               k = problem.packed ? q
                                  : input(problem.dtype, {c.batch, c.kv_tokens, c.kv_heads, c.head_dim}, 2);
    const int64_t first_key = problem.packed ? c.heads : 0;
    const Heads q_heads{q.cuda, 0, c.heads}, k_heads{k.cuda, first_key, c.kv_heads};

    AttentionMask mask(c.mask.causal, !c.mask.documents.empty());
    mask.window = c.mask.window, mask.offset = c.mask.offset;
    if (!c.mask.seen_by.empty()) mask = AttentionMask::of_dealt_queries();
    MaskTables tables;
    const auto table = [&](const std::vector<int32_t>& from, Shape shape) {
      return from.empty() ? Tensor{}
                          : indices(shape, [&](int64_t i) { return from[static_cast<size_t>(i)]; }).cuda;
    };
    tables.documents = table(c.mask.documents, {c.batch, c.tokens, 2});
    tables.seen_by = table(c.mask.seen_by, {c.batch, c.kv_tokens, 2});
    tables.query_tokens = table(c.mask.query_tokens, {c.batch, c.tokens});
    if (c.blocks.size > 0) {
      const BlockLists lists = test::lists_of(c.blocks, c.tokens + c.mask.offset, c.kv_tokens);
      mask.blocks = lists.shape();
      tables.blocks = table(lists.numbers(), {std::ssize(lists.numbers())});
    }
    const AttentionPlan plan{
        .kind = AttentionKind::kFlash,
        .shape = {.batch = c.batch,
                  .tokens = c.tokens,
                  .heads = c.heads,
                  .head_dim = c.head_dim,
                  .mask = mask,
                  .kv_heads = c.kv_heads,
                  .kv_tokens = c.kv_tokens,
                  .scores = {.alibi_heads = c.alibi_heads, .cap = static_cast<float>(c.cap)}},
        .dtype = problem.dtype,
        .scale = static_cast<float>(c.scale),
        .first_head = c.first_head};
    const Twin found = indices({c.heads}, [](int64_t) { return 0; });
    run_twice({found}, [&] {
      cuda().run(
          LargestScores{.plan = plan, .q = q_heads, .k = k_heads, .tables = tables, .largest = found.cuda});
    });
    const std::vector<char> bytes = bytes_of(found.cuda);
    const auto* words = reinterpret_cast<const uint32_t*>(bytes.data());
    const std::vector<double> expected = test::largest_scores(c, heads_on_host(q.cpu, 0, c.heads),
                                                              heads_on_host(k.cpu, first_key, c.kv_heads));
    for (size_t h = 0; h < expected.size(); ++h) {
      const float score = float_of_ordered(words[h]);
      if (std::isinf(expected[h])) {
        EXPECT_EQ(score, expected[h]);
        continue;
      }
      // Products of bf16 are exact in fp32; their sums are those of a GEMM in fp32.
      EXPECT_NEAR(score, expected[h],
                  tolerance::of_operation(DType::kF32) * std::max(1.0, std::abs(expected[h])))
          << "head " << h;
    }
  }

  // [B, heads, T, D]
  static std::vector<double> heads_on_host(const Tensor& t, int64_t first, int64_t count) {
    std::vector<double> values;
    for (int64_t b = 0; b < t.shape[0]; ++b)
      for (int64_t h = first; h < first + count; ++h)
        for (int64_t row = 0; row < t.shape[1]; ++row) {
          const float* from = t.as<float>() + ((b * t.shape[1] + row) * t.shape[2] + h) * t.shape[3];
          values.insert(values.end(), from, from + t.shape[3]);
        }
    return values;
  }

  static test::AttentionCase attention(int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads,
                                       int head_dim, const test::MaskCase& mask) {
    return {.batch = batch,
            .tokens = tokens,
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .mask = mask,
            .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
  }
};

TEST_F(CudaLargestScores, OfEveryMaskAndHeadDim) {
  for (const DType dtype : kReal)
    for (const int head_dim : {64, 128, 256, 80, 8, 192, 272, 12})
      for (const test::MaskCase& mask : {test::MaskCase(false), test::MaskCase(true),
                                         test::MaskCase(true, 50), test::MaskCase(true, 0, -20)})
        expect_fp64({.c = attention(2, 203, 4, 2, head_dim, mask), .dtype = dtype});
}

TEST_F(CudaLargestScores, OfOddLengthsAndPackedHeads) {
  for (const DType dtype : kReal)
    for (const bool packed : {false, true})
      for (const int64_t tokens : {1, 17, 128, 129, 300}) {
        expect_fp64(
            {.c = attention(3, tokens, 6, 2, 64, test::MaskCase(true)), .dtype = dtype, .packed = packed});
        expect_fp64(
            {.c = attention(1, tokens, 2, 2, 128, test::MaskCase(false)), .dtype = dtype, .packed = packed});
      }
  test::AttentionCase c = attention(2, 70, 4, 1, 96, test::MaskCase(true, 0, 90));
  for (const int64_t keys : {160, 55}) {
    c.kv_tokens = keys;
    for (const DType dtype : kReal) expect_fp64({.c = c, .dtype = dtype});
  }
}

// Queries whose scores are all below 0: rows behind the end, which are zeros, must not count.
TEST_F(CudaLargestScores, OfScoresBelowZero) {
  const test::AttentionCase c = attention(1, 37, 2, 2, 64, test::MaskCase(true));
  const AttentionPlan plan{.kind = AttentionKind::kFlash,
                           .shape = {1, 37, 2, 64, AttentionMask(true), 2},
                           .dtype = DType::kBF16,
                           .scale = 0.125f};
  for (const DType dtype : kReal) {
    AttentionPlan own = plan;
    own.dtype = dtype;
    const Twin q = with_values(dtype, {1, 37, 2, 64}, [](int64_t) { return 1.0f; }),
               k = with_values(dtype, {1, 37, 2, 64},
                               [](int64_t i) { return i / 64 % 2 == 0 ? -1.0f : -0.5f; }),
               found = indices({2}, [](int64_t) { return 0; });
    cuda().run(
        LargestScores{.plan = own, .q = all_heads(q.cuda), .k = all_heads(k.cuda), .largest = found.cuda});
    const std::vector<char> bytes = bytes_of(found.cuda);
    const auto* words = reinterpret_cast<const uint32_t*>(bytes.data());
    EXPECT_EQ(float_of_ordered(words[0]), -8);
    EXPECT_EQ(float_of_ordered(words[1]), -4);
  }
}

TEST_F(CudaLargestScores, OfDocumentsDealtQueriesBiasesAndCaps) {
  for (const DType dtype : kReal)
    for (const int head_dim : {64, 128, 256}) {
      const std::vector<int32_t> documents = test::documents_from({0, 1, 40, 41, 190, 203, 260, 406}, 2, 203);
      test::AttentionCase c = attention(2, 203, 4, 2, head_dim, test::MaskCase(true, documents));
      expect_fp64({.c = c, .dtype = dtype});
      c.mask = test::MaskCase(true, documents, 30);
      expect_fp64({.c = c, .dtype = dtype});
      c.mask = test::MaskCase(false, documents);
      expect_fp64({.c = c, .dtype = dtype});
      c = attention(2, 203, 6, 3, head_dim, test::MaskCase(true));
      c.alibi_heads = 12, c.first_head = 5;
      expect_fp64({.c = c, .dtype = dtype});
      c.mask = test::MaskCase(false);
      expect_fp64({.c = c, .dtype = dtype});
      c.alibi_heads = c.first_head = 0, c.cap = 3;
      expect_fp64({.c = c, .dtype = dtype});
      // Every third token of a causal sequence
      test::AttentionCase dealt = attention(1, 101, 4, 2, head_dim, test::MaskCase(false));
      dealt.kv_tokens = 303, dealt.alibi_heads = 4;
      for (int32_t i = 0; i < 101; ++i) {
        dealt.mask.query_tokens.push_back(3 * i + 1);
        dealt.mask.documents.push_back(0), dealt.mask.documents.push_back(3 * i + 2);
      }
      for (int32_t key = 0; key < 303; ++key) {
        dealt.mask.seen_by.push_back(std::max(0, (key + 1) / 3)), dealt.mask.seen_by.push_back(101);
      }
      expect_fp64({.c = dealt, .dtype = dtype});
    }
}

// Blocks of dealt queries: lists count them as they come, the bias and the mask by their tokens.
TEST_F(CudaLargestScores, OfDealtQueriesAndSparseBlocks) {
  for (const DType dtype : kReal)
    for (const int64_t alibi_heads : {0, 4}) {
      test::AttentionCase c = attention(1, 256, 4, 2, 64, test::MaskCase(false));
      c.kv_tokens = 640, c.alibi_heads = alibi_heads;
      const auto token_of = [](int32_t row) { return row < 128 ? 128 + row : 384 + row - 128; };
      for (int32_t row = 0; row < 256; ++row) {
        c.mask.query_tokens.push_back(token_of(row));
        c.mask.documents.push_back(0), c.mask.documents.push_back(token_of(row) + 1);
      }
      for (int32_t key = 0; key < 640; ++key) {
        int32_t first = 0;
        while (first < 256 && token_of(first) < key) ++first;
        c.mask.seen_by.push_back(first), c.mask.seen_by.push_back(256);
      }
      for (const uint32_t seed : {1u, 2u, 3u}) {
        c.blocks = test::random_blocks({.size = 128, .lists = 2, .seed = seed}, c.tokens, c.kv_tokens);
        expect_fp64({.c = c, .dtype = dtype});
      }
    }
}

TEST_F(CudaLargestScores, OfSparseBlocks) {
  for (const DType dtype : kReal)
    for (const int head_dim : {64, 128, 256})
      for (const uint32_t seed : {1u, 2u, 3u}) {
        test::AttentionCase c =
            attention(2, 700, 4, 2, head_dim, test::MaskCase(seed != 2, seed == 3 ? 200 : 0));
        c.blocks = test::random_blocks(
            {.size = seed == 1 ? 256 : 128, .lists = seed == 1 ? 1 : 2, .seed = seed}, c.tokens, c.tokens);
        expect_fp64({.c = c, .dtype = dtype});
      }
}

TEST_F(CudaLargestScores, ClippedHeadsHaveTheBitsOfTheCpu) {
  constexpr int64_t H = 6, K = 2, D = 5, C = 77;
  const Twin norm = with_values(DType::kF32, {1}, [](int64_t) { return 1.0f; });
  const float scores[2][H] = {{-1, 99, 250, 3, 1, 0}, {400, 7, 2, 100, -5, INFINITY}};
  const Twin largest =
      indices({2, 1, H}, [&](int64_t i) { return static_cast<int32_t>(ordered_word(scores[i / H][i % H])); });
  for (const int64_t first : {int64_t{0}, int64_t{123}, 9 * D * C}) {
    const int64_t count = std::min<int64_t>(1501, (H + 2 * K) * D * C - first);
    const auto op = [&](const auto& on, const Twin& param, const Tensor& low) {
      return ClipHeads{.param = on(param),
                       .low = low,
                       .first_element = first,
                       .columns = C,
                       .head_dim = D,
                       .kv_heads = K,
                       .largest = on(largest),
                       .layer = 0,
                       .most = 100,
                       .grad_norm = on(norm)};
    };
    const Twin masters = input(DType::kF32, {count});
    const std::vector<float> before = floats_of(masters.cuda);
    const Twin weights = output(DType::kBF16, {count}), low = output(DType::kBF16, {count});
    const Tensor bits{low.cuda.data, DType::kU16, low.cuda.shape, Device::kCuda};
    cuda().run(SplitMasters{.masters = masters.cuda, .weights = weights.cuda, .low = bits});
    cuda().run(op(OnCuda{}, weights, bits));
    run_on_both({masters}, [&](const auto& on) { return op(on, masters, {}); });
    EXPECT_EQ(floats_of(masters.cuda),
              std::vector<float>(masters.cpu.as<float>(), masters.cpu.as<float>() + count));
    const Twin joined = output(DType::kF32, {count});
    cuda().run(JoinMasters{.weights = weights.cuda, .low = bits, .masters = joined.cuda});
    EXPECT_EQ(floats_of(joined.cuda), floats_of(masters.cuda)) << "masters of bf16 weights";
    if (first == 0) {
      EXPECT_NE(floats_of(masters.cuda), before);
    }
  }
}

}  // namespace
}  // namespace tessera
