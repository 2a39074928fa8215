// CPU attention under every mask, and with keys of another number than queries: naive and flash against fp64,
// what is skipped, documents against sequences of their own, refusals.
#include "tests/kernels/attention_heads.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

AttentionMask causal_mask(int64_t window, int64_t offset = 0) {
  AttentionMask mask(true);
  mask.window = window, mask.offset = offset;
  return mask;
}
AttentionMask document_mask(bool causal, int64_t window = 0) {
  AttentionMask mask(causal, true);
  mask.window = window;
  return mask;
}

// Each `length` tokens long, but for the last
std::vector<int32_t> documents_every(int32_t length, int64_t all) {
  std::vector<int32_t> cumulative;
  for (int32_t t = 0; t < all; t += length) cumulative.push_back(t);
  cumulative.push_back(static_cast<int32_t>(all));
  return cumulative;
}

struct AttentionMasks : AttentionHeads {
  Tensor documents_tensor(const AttentionShape& s, const std::vector<int32_t>& cumulative) {
    const std::vector<int32_t> spans = test::documents_from(cumulative, s.batch, s.tokens);
    const Tensor t = make.empty({s.batch, s.tokens, 2}, DType::kI32);
    std::ranges::copy(spans, t.as<int32_t>());
    return t;
  }
  // `cumulative` of all tokens of the batch, where the mask has documents
  Inputs inputs_for(const AttentionShape& s, const std::vector<int32_t>& cumulative = {}) {
    Inputs in = inputs_apart(s);
    if (!cumulative.empty()) in.tables.documents = documents_tensor(s, cumulative);
    return in;
  }

  void expect_fp64(const AttentionShape& s, const std::vector<int32_t>& cumulative = {},
                   const Dropout& dropout = {}) {
    const Inputs in = inputs_for(s, cumulative);
    const test::AttentionReference want = reference_of(s, in, dropout);
    for (const AttentionKind kind : kKinds) {
      SCOPED_TRACE(fmt::format("{} {} B {} T {} keys {} H {} K {} D {} dropout {}", name_of(kind),
                               to_string(s.mask), s.batch, s.tokens, s.kv_tokens, s.heads, s.kv_heads,
                               s.head_dim, dropout.threshold));
      const Result r = run_apart(plan_for(kind, s, 3, static_cast<bool>(dropout)), in, dropout);
      expect_near(r.y, want.out);
      expect_near(r.dq, want.dq);
      expect_near(r.dk, want.dk);
      expect_near(r.dv, want.dv);
      if (kind == AttentionKind::kFlash) expect_log_sum_exp(r.saved, want.lse);
    }
  }
  // The inputs are of size 1. Where every query sees one key, dQ and dK are 0 but for roundings of that size.
  template <class Heads>
  static void expect_near(const Heads& heads, const std::vector<double>& want) {
    EXPECT_LT(error_of(values_of(heads), want, 1), tolerance::kCpuAttention);
  }
  static void expect_log_sum_exp(const Tensor& got, const std::vector<double>& want) {
    for (size_t i = 0; i < want.size(); ++i)
      if (std::isinf(want[i]))
        ASSERT_EQ(floats(got)[i], want[i]) << i;
      else
        ASSERT_NEAR(floats(got)[i], want[i], tolerance::kCpuAttention * std::max(1.0, std::abs(want[i])))
            << i;
  }
};

constexpr int64_t kSizes[] = {1, 17, 63, 64, 65, 129, 193};

TEST_F(AttentionMasks, WindowsMatchFp64) {
  for (const int64_t T : kSizes)
    for (const int64_t window : {1, 2, 31, 63, 64, 65, 100, 1000})
      expect_fp64({2, T, 4, 9, causal_mask(window), 2});
}

TEST_F(AttentionMasks, OffsetsAndOtherNumbersOfKeysMatchFp64) {
  for (const int64_t T : {1, 63, 65, 130})
    for (const int64_t N : {1, 64, 65, 190}) {
      expect_fp64({1, T, 4, 16, false, 2, N});
      for (const int64_t offset : {-1000, -190, -65, -64, -1, 0, 1, 60, 64, 129, 1000}) {
        expect_fp64({1, T, 2, 16, causal_mask(0, offset), 1, N});
        expect_fp64({1, T, 2, 16, causal_mask(offset % 2 == 0 ? 7 : 70, offset), 1, N});
      }
    }
}

TEST_F(AttentionMasks, DocumentsMatchFp64) {
  for (const bool causal : {true, false}) {
    for (const int64_t T : kSizes) {
      const AttentionShape s{2, T, 4, 9, document_mask(causal), 2};
      for (const int32_t length : {1, 2, 5, 31, 63, 64, 65, 1000})
        expect_fp64(s, documents_every(length, 2 * T));
    }
    // Ending on tile edges and around them, with documents of one token between longer ones
    for (const std::vector<int32_t>& cumulative :
         std::vector<std::vector<int32_t>>{{0, 64, 128, 192, 400},
                                           {0, 63, 127, 191, 263, 327, 391, 400},
                                           {0, 65, 129, 193, 201, 265, 329, 393, 400},
                                           {0, 63, 64, 65, 127, 128, 129, 399, 400},
                                           {0, 1, 199, 200, 201, 399, 400}})
      for (const int64_t window : {0, 1, 3, 64, 100}) {
        if (window > 0 && !causal) continue;
        expect_fp64({2, 200, 2, 16, document_mask(causal, window), 1}, cumulative);
      }
  }
}

TEST_F(AttentionMasks, OverAThousandDocumentsMatchFp64) {
  std::vector<int32_t> mostly_short = {0};  // lengths 1, 2, 1, 2, .. and one long document in the middle
  while (mostly_short.back() < 1700)
    mostly_short.push_back(mostly_short.back() +
                           (mostly_short.size() % 700 == 0 ? 150 : mostly_short.size() % 2 + 1));
  mostly_short.back() = 1700;
  ASSERT_GT(mostly_short.size(), 1000U);
  expect_fp64({1, 1700, 2, 8, document_mask(true), 1}, mostly_short);
  expect_fp64({1, 1700, 1, 8, document_mask(false)}, mostly_short);
  expect_fp64({2, 600, 1, 8, document_mask(true)}, documents_every(1, 1200));
}

TEST_F(AttentionMasks, WithDropoutMatchFp64) {
  const Dropout dropout{
      .threshold = 51, .key = 0x0123456789abcdef, .place = 7 * Dropout::kHeads, .first_sequence = 1000};
  for (const int64_t T : {17, 65, 193}) {
    expect_fp64({2, T, 4, 16, causal_mask(40), 2}, {}, dropout);
    expect_fp64({2, T, 4, 16, causal_mask(0, -20), 2, T + 50}, {}, dropout);
    expect_fp64({2, T, 4, 16, false, 2, 50}, {}, dropout);
    for (const bool causal : {true, false})
      expect_fp64({2, T, 4, 16, document_mask(causal), 2}, documents_every(29, 2 * T), dropout);
  }
}

TEST_F(AttentionMasks, WhatSeesNothingIsZeroToTheBit) {
  const AttentionShape s{2, 150, 4, 8, causal_mask(3, -70), 2, 200};  // rows 0 to 69 see nothing
  const Inputs in = inputs_for(s);
  for (const AttentionKind kind : kKinds) {
    const Result r = run_apart(plan_for(kind, s), in);
    const int64_t D = s.head_dim;
    const auto expect_zero = [&](const Heads& heads, int64_t from, int64_t to) {
      for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t h = 0; h < heads.count; ++h)
          for (int64_t t = from; t < to; ++t)
            for (int64_t d = 0; d < D; ++d)
              ASSERT_EQ(heads_of<float>(heads).one_head(b, h).row_begin(t)[d], 0)
                  << name_of(kind) << " " << t;
    };
    expect_zero({r.y, 0, s.heads}, 0, 70);
    expect_zero(r.dq, 0, 70);
    expect_zero(r.dk, 80, 200);  // the last query, 149, sees keys up to 79
    expect_zero(r.dv, 80, 200);
    if (kind != AttentionKind::kFlash) continue;
    for (int64_t row = 0; row < s.batch * s.heads; ++row)
      for (int64_t t = 0; t < 70; ++t)
        ASSERT_EQ(floats(r.saved)[static_cast<size_t>(row * s.tokens + t)],
                  -std::numeric_limits<float>::infinity());
  }
}

// NaN in K, V, Q and dY of tiles of 64 that no query or key of others has to do with must not show there.
TEST_F(AttentionMasks, FlashSkipsTilesThatTheMaskHides) {
  const auto spoil = [](const Heads& heads, int64_t from, int64_t to) {
    for (int64_t h = 0; h < heads.count; ++h)
      for (int64_t t = from; t < to; ++t)
        std::fill_n(heads_of<float>(heads).one_head(0, h).row_begin(t), 8, std::nanf(""));
  };
  const auto finite = [](const Heads& heads, int64_t from, int64_t to) {
    for (int64_t h = 0; h < heads.count; ++h)
      for (int64_t t = from; t < to; ++t)
        for (int d = 0; d < 8; ++d)
          if (!std::isfinite(heads_of<float>(heads).one_head(0, h).row_begin(t)[d])) return false;
    return true;
  };
  struct Case {
    AttentionMask mask;
    std::vector<int32_t> cumulative;
    int64_t first_good;  // rows before 64 are spoiled, rows from here on must not know
  };
  for (const Case& c : std::vector<Case>{{causal_mask(10), {}, 128},
                                         {document_mask(true), {0, 64, 256}, 64},
                                         {document_mask(false), {0, 64, 256}, 64}}) {
    const AttentionShape s{1, 256, 2, 8, c.mask, 1};
    const Inputs in = inputs_for(s, c.cumulative);
    for (const Heads& heads : {in.q, in.k, in.v, Heads{in.dy, 0, 2}}) spoil(heads, 0, 64);
    const Result r = run_apart(plan_for(AttentionKind::kFlash, s), in);
    for (const Heads& heads : {Heads{r.y, 0, 2}, r.dq, r.dk, r.dv}) {
      EXPECT_FALSE(finite(heads, 0, 64)) << to_string(c.mask);
      EXPECT_TRUE(finite(heads, c.first_good, 256)) << to_string(c.mask);
    }
  }
}

Tensor rows_of(HostTensors& make, const Tensor& t, int64_t from, int64_t to) {
  const Shape& s = t.shape;
  const Tensor part = make.empty({1, to - from, s[2], s[3]});
  std::copy_n(t.as<float>() + from * s[2] * s[3], part.numel(), part.as<float>());
  return part;
}

TEST_F(AttentionMasks, PackedDocumentsEqualSequencesOfTheirOwn) {
  const std::vector<int32_t> cumulative = {0, 1, 70, 134, 135, 300, 333};
  for (const AttentionKind kind : kKinds)
    for (const bool causal : {true, false}) {
      const AttentionShape s{1, 333, 4, 8, document_mask(causal), 2};
      const Inputs in = inputs_for(s, cumulative);
      const Result packed = run_apart(plan_for(kind, s), in);
      for (size_t d = 0; d + 1 < cumulative.size(); ++d) {
        const int64_t from = cumulative[d], to = cumulative[d + 1];
        SCOPED_TRACE(fmt::format("{} {} document {} to {}", name_of(kind), causal, from, to));
        const auto part = [&](const Heads& heads) {
          return Heads{rows_of(make, heads.tensor, from, to), heads.first, heads.count};
        };
        const AttentionShape one{1, to - from, 4, 8, causal, 2};
        const Result alone = run_apart(plan_for(kind, one),
                                       {part(in.q), part(in.k), part(in.v), rows_of(make, in.dy, from, to)});
        for (const auto& [got, want] : {std::pair{Heads{packed.y, 0, 4}, Heads{alone.y, 0, 4}},
                                        {packed.dq, alone.dq},
                                        {packed.dk, alone.dk},
                                        {packed.dv, alone.dv}})
          EXPECT_LT(error_of(values_of(part(got)), doubles_of(values_of(want)), 1), tolerance::kCpuAttention);
      }
    }
}

// Masks that say the same in other words give the same bits.
TEST_F(AttentionMasks, ThatHideNothingMoreKeepTheBits) {
  for (const AttentionKind kind : kKinds) {
    const AttentionShape causal{2, 150, 4, 16, true, 2}, full{2, 150, 4, 16, false, 2};
    Inputs in = inputs_for(causal);
    const Result plain = run_apart(plan_for(kind, causal), in), whole = run_apart(plan_for(kind, full), in);
    const auto expect_same = [&](const Result& want, const AttentionMask& mask) {
      expect_same_bits(want, run_apart(plan_for(kind, {2, 150, 4, 16, mask, 2}), in));
    };
    expect_same(plain, causal_mask(150));
    expect_same(whole, causal_mask(0, 149));
    in.tables.documents = documents_tensor(causal, {0, 150, 300});
    expect_same(plain, document_mask(true));
    expect_same(whole, document_mask(false));
  }
}

TEST_F(AttentionMasks, ThreadsDoNotChangeTheBits) {
  const AttentionShape s{2, 131, 6, 16, document_mask(true, 20), 3};
  const Inputs in = inputs_for(s, documents_every(37, 262));
  const Result first = run_apart(plan_for(AttentionKind::kFlash, s, 1), in);
  for (const int threads : {1, 2, 8})
    expect_same_bits(first, run_apart(plan_for(AttentionKind::kFlash, s, threads), in));
}

TEST_F(AttentionMasks, FlashDoesNotDependOnTheTile) {
  const AttentionShape s{1, 77, 2, 12, document_mask(true, 20)};
  const AttentionPlan plan = plan_for(AttentionKind::kFlash, s);
  const Inputs in = inputs_for(s, {0, 3, 4, 32, 64, 77});
  const Result whole = run_apart(plan, in);
  for (const int64_t queries : {1, 3, 50, 100})
    for (const int64_t keys : {1, 7, 32, 76, 200}) {
      SCOPED_TRACE(fmt::format("{} x {}", queries, keys));
      const cpu::FlashTile tile{queries, keys};
      const int64_t of_threads =
          plan.threads * std::max(cpu::FlashForwardScratch(nullptr, tile, s.head_dim).bytes,
                                  cpu::FlashBackwardScratch(nullptr, tile, s.tokens).bytes);
      const Tensor workspace = make.poisoned({of_threads / 4});
      const Result tiled{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), poisoned_heads(s, 2),
                         poisoned_heads(s, 2), poisoned_heads(s, 2)};
      cpu::flash_attention_forward(forward(plan, in, tiled, workspace), tile);
      cpu::flash_attention_backward(backward(plan, in, tiled, workspace), tile);
      for (const auto& [got, want] : {std::pair{Heads{tiled.y, 0, 2}, Heads{whole.y, 0, 2}},
                                      {tiled.dq, whole.dq},
                                      {tiled.dk, whole.dk},
                                      {tiled.dv, whole.dv}})
        EXPECT_LT(error_of(values_of(got), doubles_of(values_of(want))), tolerance::kCpuAttention);
    }
}

TEST_F(AttentionMasks, GradientsMatchFiniteDifferences) {
  const std::vector<std::pair<AttentionShape, std::vector<int32_t>>> cases = {
      {{2, 11, 2, 4, causal_mask(3), 1}, {}},
      {{2, 11, 2, 4, causal_mask(4, 2), 1, 9}, {}},
      {{2, 11, 2, 4, causal_mask(0, -3), 1, 14}, {}},
      {{2, 11, 2, 4, false, 1, 5}, {}},
      {{2, 11, 2, 4, document_mask(true), 1}, {0, 3, 4, 15, 22}},
      {{2, 11, 2, 4, document_mask(false), 1}, {0, 3, 4, 15, 22}}};
  for (const auto& [s, cumulative] : cases)
    for (const AttentionKind kind : kKinds) {
      SCOPED_TRACE(fmt::format("{} {} keys {}", name_of(kind), to_string(s.mask), s.kv_tokens));
      const Inputs in = inputs_for(s, cumulative);
      expect_gradients_by_differences(plan_for(kind, s), in);
    }
}

TEST_F(AttentionMasks, OperationsRefuseDocumentsThatDoNotFit) {
  const AttentionShape s{2, 4, 2, 8, document_mask(true)}, plain{2, 4, 2, 8, true};
  Inputs in = inputs_for(s, {0, 2, 8});
  const auto expect_words = [&](const AttentionShape& shape, std::initializer_list<std::string_view> words) {
    const AttentionPlan plan = plan_for(AttentionKind::kFlash, shape);
    const Result r{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), poisoned_heads(s, 2),
                   poisoned_heads(s, 2), poisoned_heads(s, 2)};
    const Tensor workspace = workspace_of(plan);
    for (const std::string& message : {message_of([&] { cpu.run(forward(plan, in, r, workspace)); }),
                                       message_of([&] { cpu.run(backward(plan, in, r, workspace)); })})
      EXPECT_TRUE(says(message, words));
  };
  expect_words(plain, {"documents ", "AttentionMask::documents"});
  int32_t* span = in.tables.documents.as<int32_t>();
  const auto with = [&](int64_t token, int32_t begin, int32_t end,
                        std::initializer_list<std::string_view> words) {
    const int32_t before[] = {span[2 * token], span[2 * token + 1]};
    span[2 * token] = begin, span[2 * token + 1] = end;
    expect_words(s, words);
    std::ranges::copy(before, span + 2 * token);
  };
  with(0, 0, 5, {"found 0 to 5", "token 0 of sequence 0", "4"});  // past the end of its sequence
  with(0, 0, 0, {"found 0 to 0", "token 0 of sequence 0"});       // without itself
  with(1, 1, 2, {"found 1 to 2 ", "token 1 of sequence 0"});      // not the document of token 0
  with(1, 0, 3, {"found 0 to 3 ", "token 1 of sequence 0"});
  with(2, 1, 4, {"found 1 to 4 ", "token 2 of sequence 0"});  // overlaps the one before
  with(4, -1, 4, {"found -1 to 4 ", "token 0 of sequence 1"});
  in.tables.documents = make.tokens({2, 4, 3}, 1);
  expect_words(s, {"documents ", "int32 [2, 4, 2] on cpu"});
  in.tables.documents = make.zeros({2, 4, 2});
  expect_words(s, {"documents ", "int32 [2, 4, 2] on cpu"});
  in.tables.documents = {};
  expect_words(s, {"documents ", "int32 [2, 4, 2] on cpu"});
}

TEST_F(AttentionMasks, OperationsWantKeysOfThePlan) {
  const AttentionShape s{1, 4, 2, 8, false, 2, 6};
  const AttentionPlan plan = plan_for(AttentionKind::kNaive, s);
  const Inputs good = inputs_for(s), short_keys = inputs_for({1, 4, 2, 8, false, 2, 5});
  const Result r{make.poisoned(good.dy.shape), make.poisoned(plan.saved_shape), poisoned_heads(s, 2),
                 poisoned_heads(s, 6, 2), poisoned_heads(s, 5, 2)};
  const Tensor workspace = workspace_of(plan);
  const std::string of_keys = message_of([&] {
    cpu.run(forward(plan, {good.q, short_keys.k, good.v, good.dy}, r, workspace));
  });
  EXPECT_TRUE(says(of_keys, {"k must ", "fp32 [1, 6, heads, 8] on cpu", "found"}));
  const std::string of_gradient = message_of([&] { cpu.run(backward(plan, good, r, workspace)); });
  EXPECT_TRUE(says(of_gradient, {"dv must ", "fp32 [1, 6, heads, 8] on cpu", "found"}));
}

TEST(ChooseAttentionMasks, PlansForTheKeys) {
  const AttentionShape s{2, 100, 3, 16, causal_mask(5, 2), 1, 70};
  const AttentionPlan naive = plan_for(AttentionKind::kNaive, s, 3, true);
  EXPECT_EQ(naive.saved_shape, (Shape{2, 3, 100, 70}));
  EXPECT_EQ(naive.forward_workspace_bytes, 3 * 100 * 70 * 4);
  EXPECT_EQ(naive.backward_workspace_bytes, 3 * 100 * 70 * 4);
  EXPECT_EQ(plan_for(AttentionKind::kFlash, s).saved_shape, (Shape{2, 3, 100}));
}

TEST(ChooseAttentionMasks, RefusesMasksThatSayNothing) {
  const auto expect_words = [](const AttentionShape& s, std::initializer_list<std::string_view> words) {
    const std::string message = message_of([&] { plan_for(AttentionKind::kFlash, s); });
    EXPECT_TRUE(says(message, words));
  };
  AttentionMask full(false);
  full.window = 3;
  expect_words({1, 8, 1, 8, full}, {"causal", "found window 3"});
  full.window = 0, full.offset = -2;
  expect_words({1, 8, 1, 8, full}, {"found window 0, offset -2"});
  expect_words({1, 8, 1, 8, causal_mask(-1)}, {"window", "1073741824", "found -1"});
  expect_words({1, 8, 1, 8, causal_mask(int64_t{1} << 40)}, {"found 1099511627776"});
  expect_words({1, 8, 1, 8, causal_mask(0, -(int64_t{1} << 31))}, {"offset", "-1073741824"});
  AttentionMask documents = document_mask(true);
  expect_words({1, 8, 1, 8, documents, 1, 9}, {"found 9 keys, 8 queries, offset 0"});
  documents.offset = 4;
  expect_words({1, 8, 1, 8, documents}, {"found 8 keys, 8 queries, offset 4"});
}

TEST(ChooseAttentionMasks, ARefusalNamesTheMask) {
  const auto message = [](AttentionKind kind, int arch, AttentionShape shape) {
    return message_of([&] {
      choose_attention({.kind = kind,
                        .shape = shape,
                        .dtype = DType::kBF16,
                        .device = {.device = Device::kCuda, .arch = arch, .name = "a GPU"}});
    });
  };
  const std::string flash = message(AttentionKind::kFlash, 70, {1, 64, 1, 64, document_mask(true, 7)});
  EXPECT_TRUE(says(flash, {"mask: causal, window 7", "documents"}));
  const std::string keys = message(AttentionKind::kFlash, 70, {1, 64, 1, 64, causal_mask(0, -3), 1, 70});
  EXPECT_NE(keys.find("mask: causal, offset -3, 70 keys"), std::string::npos) << keys;
  const std::string cudnn = message(AttentionKind::kCudnn, 90, {1, 64, 1, 64, document_mask(false)});
  EXPECT_TRUE(says(cudnn, {"mask: full", "documents", "model.attention=flash"}));
}

// The plans of GPUs need no GPU.
TEST(ChooseAttentionMasks, FlashServesEveryMaskInFp32OnEveryGpu) {
  for (const int arch : {80, 90, 120})
    for (const AttentionShape& s : {AttentionShape{2, 64, 2, 40, causal_mask(5)},
                                    {2, 64, 2, 40, causal_mask(5, -9), 2, 100},
                                    {2, 64, 2, 40, document_mask(false)},
                                    {2, 64, 2, 40, false, 2, 7}})
      EXPECT_EQ(choose_attention({.kind = AttentionKind::kFlash,
                                  .shape = s,
                                  .dtype = DType::kF32,
                                  .device = {.device = Device::kCuda, .arch = arch, .name = "a GPU"}})
                    .saved_shape,
                (Shape{2, 2, 64}));
}

}  // namespace
}  // namespace tessera::testing
