// CPU attention of dealt queries, some tokens of a sequence against all of its keys, and of some heads at a
// time: rows, and heads, of attention over the whole, with dropout too.
#include "tests/kernels/attention_heads.h"
#include "tests/random_blocks.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

constexpr Dropout kDealtDropout{
    .threshold = 51, .key = 0x0123456789abcdef, .place = 7 * Dropout::kHeads, .first_sequence = 1000};

// The tokens of each sequence that one of `parts` has: blocks of five, each sequence from another part on;
// with sparse blocks whole ones of these, of each sequence the same
using DealtRows = std::vector<std::vector<int32_t>>;
DealtRows rows_of_part(const AttentionShape& whole, int64_t parts, int64_t part) {
  DealtRows rows(static_cast<size_t>(whole.batch));
  const int64_t size = whole.mask.blocks.size;
  for (int64_t b = 0; b < whole.batch; ++b)
    for (int64_t t = 0; t < whole.tokens; ++t)
      if ((size > 0 ? t / size : t / 5 + b) % parts == part)
        rows[static_cast<size_t>(b)].push_back(static_cast<int32_t>(t));
  return rows;
}

// Those rows of [B, N, heads, D] as [B, T, heads, D]; padding is 0
Tensor taken_rows(HostTensors& make, const Tensor& from, const DealtRows& rows, int64_t T) {
  const Shape& s = from.shape;
  const int64_t width = s[2] * s[3];
  const Tensor to = make.zeros({s[0], T, s[2], s[3]});
  for (size_t b = 0; b < rows.size(); ++b)
    for (size_t i = 0; i < rows[b].size(); ++i)
      std::copy_n(from.as<float>() + (static_cast<int64_t>(b) * s[1] + rows[b][i]) * width, width,
                  to.as<float>() + (static_cast<int64_t>(b) * T + static_cast<int64_t>(i)) * width);
  return to;
}
Heads taken_rows(HostTensors& make, const Heads& from, const DealtRows& rows, int64_t T) {
  return {taken_rows(make, from.tensor, rows, T), from.first, from.count};
}

// The lists of one of `parts`: those of its query blocks
test::BlockCase blocks_of_part(const test::BlockCase& whole, int64_t parts, int64_t part, int64_t T) {
  test::BlockCase own{.size = whole.size,
                      .lists = whole.lists,
                      .query_blocks = (T + whole.size - 1) / whole.size,
                      .key_blocks = whole.key_blocks};
  for (int64_t list = 0; list < own.lists; ++list)
    for (int64_t row = 0; row < own.query_blocks; ++row)
      for (int64_t column = 0; column < own.key_blocks; ++column) {
        const int64_t block = row * parts + part;
        own.shown.push_back(block < whole.query_blocks && whole.shows(list, block, column));
      }
  return own;
}

struct DealtQueries : AttentionHeads {
  // Gives the mask of the problem these sparse blocks, and returns their lists.
  Tensor list(AttentionShape& s, const test::BlockCase& blocks) {
    const BlockLists lists = test::lists_of(blocks, s.tokens, s.kv_tokens);
    s.mask.blocks = lists.shape();
    const Tensor numbers = make.empty({std::ssize(lists.numbers())}, DType::kI32);
    std::ranges::copy(lists.numbers(), numbers.as<int32_t>());
    return numbers;
  }
  // Of T rows a sequence; `documents` [B, N, 2] of the whole, or none. Rows past the last are padding, which
  // sees nothing.
  MaskTables tables_of(const AttentionShape& whole, const Tensor& documents, const DealtRows& rows,
                       int64_t T) {
    const int64_t B = whole.batch, N = whole.tokens;
    const MaskTables tables{.documents = make.empty({B, T, 2}, DType::kI32),
                            .seen_by = make.empty({B, N, 2}, DType::kI32),
                            .query_tokens = make.empty({B, T}, DType::kI32)};
    const auto document_of = [&](int64_t b, int64_t token) {
      const int32_t* of_token = documents ? documents.as<int32_t>() + 2 * (b * N + token) : nullptr;
      return documents ? std::pair(of_token[0], of_token[1]) : std::pair(0, static_cast<int32_t>(N));
    };
    for (int64_t b = 0; b < B; ++b) {
      const std::vector<int32_t>& tokens = rows[static_cast<size_t>(b)];
      int32_t end = 0;
      for (int64_t i = 0; i < T; ++i) {
        const bool real = i < std::ssize(tokens);
        const int32_t token = real ? tokens[static_cast<size_t>(i)] : 0;
        const int32_t begin = real ? document_of(b, token).first : end;
        if (real) end = token + 1;
        int32_t* seen = tables.documents.as<int32_t>() + 2 * (b * T + i);
        seen[0] = begin, seen[1] = end;
        tables.query_tokens.as<int32_t>()[b * T + i] = token;
      }
      for (int64_t key = 0; key < N; ++key) {  // rows from its token to the end of its document
        int32_t* seeing = tables.seen_by.as<int32_t>() + 2 * (b * N + key);
        const auto before = [&](int64_t token) {
          return static_cast<int32_t>(std::ranges::lower_bound(tokens, token) - tokens.begin());
        };
        seeing[0] = before(key), seeing[1] = before(document_of(b, key).second);
      }
    }
    return tables;
  }

  // y and dQ are rows of those of the whole; dK and dV add up to those of the whole.
  void expect_rows_of_the_whole(const AttentionShape& s, const std::vector<int32_t>& cumulative,
                                int64_t parts, const Dropout& dropout) {
    expect_rows_of_the_whole(s, cumulative, parts, dropout, {});
  }
  void expect_rows_of_the_whole(AttentionShape s, const std::vector<int32_t>& cumulative, int64_t parts,
                                const Dropout& dropout, const test::BlockCase& blocks) {
    Inputs in = inputs_apart(s);
    if (blocks.size > 0) in.tables.blocks = list(s, blocks);
    if (s.mask.documents) {
      const std::vector<int32_t> spans = test::documents_from(cumulative, s.batch, s.tokens);
      in.tables.documents = make.empty({s.batch, s.tokens, 2}, DType::kI32);
      std::ranges::copy(spans, in.tables.documents.as<int32_t>());
    }
    const bool drops = static_cast<bool>(dropout);
    for (const AttentionKind kind : kKinds) {
      SCOPED_TRACE(fmt::format("{} {} T {} in {} parts, dropout {}", name_of(kind), to_string(s.mask),
                               s.tokens, parts, dropout.threshold));
      const Result whole = run_apart(plan_for(kind, s, 3, drops), in, dropout);
      std::vector<float> dk(static_cast<size_t>(whole.dk.tensor.numel())), dv = dk;
      for (int64_t part = 0; part < parts; ++part) {
        const DealtRows rows = rows_of_part(s, parts, part);
        const int64_t T =
            std::ssize(*std::ranges::max_element(rows, {}, [](const auto& x) { return x.size(); })) + 2;
        AttentionShape dealt = s;
        dealt.tokens = T, dealt.kv_tokens = s.tokens, dealt.mask = AttentionMask::of_dealt_queries();
        dealt.mask.choice = s.mask.choice;
        Inputs own{taken_rows(make, in.q, rows, T), in.k, in.v, taken_rows(make, in.dy, rows, T),
                   tables_of(s, in.tables.documents, rows, T)};
        if (blocks.size > 0) own.tables.blocks = list(dealt, blocks_of_part(blocks, parts, part, T));
        const Result r = run_apart(plan_for(kind, dealt, 3, drops), own, dropout);
        EXPECT_LT(error_of(values_of(r.y), doubles_of(values_of(taken_rows(make, whole.y, rows, T))), 1),
                  tolerance::kCpuAttention)
            << "y of part " << part;
        EXPECT_LT(error_of(values_of(r.dq), doubles_of(values_of(taken_rows(make, whole.dq, rows, T))), 1),
                  tolerance::kCpuAttention)
            << "dQ of part " << part;
        for (auto& [sum, of_part] :
             {std::pair<std::vector<float>&, std::vector<float>>{dk, values_of(r.dk)}, {dv, values_of(r.dv)}})
          std::ranges::transform(sum, of_part, sum.begin(), std::plus<>());
      }
      EXPECT_LT(error_of(dk, doubles_of(values_of(whole.dk)), 1), tolerance::kCpuAttention);
      EXPECT_LT(error_of(dv, doubles_of(values_of(whole.dv)), 1), tolerance::kCpuAttention);
    }
  }
};

TEST_F(DealtQueries, AreRowsOfTheWhole) {
  for (const Dropout& dropout : {Dropout{}, kDealtDropout})
    for (const int64_t T : {1, 37, 193})
      for (const int64_t parts : {2, 3, 5}) {
        expect_rows_of_the_whole({2, T, 4, 9, true, 2}, {}, parts, dropout);
        const auto end = static_cast<int32_t>(2 * T);
        expect_rows_of_the_whole({2, T, 4, 16, AttentionMask(true, true), 1},
                                 {0, std::min(3, end - 1), end / 2, end - 1, end}, parts, dropout);
        if (dropout) continue;
        AttentionMask chosen(true), of_documents(true, true);
        chosen.choice = of_documents.choice = {.size = 16, .count = 3};
        expect_rows_of_the_whole({2, T, 4, 9, chosen, 2}, {}, parts, dropout);
        expect_rows_of_the_whole({2, T, 4, 16, of_documents, 1},
                                 {0, std::min(3, end - 1), end / 2, end - 1, end}, parts, dropout);
      }
}

TEST_F(DealtQueries, OfSparseBlocksAreRowsOfTheWhole) {
  for (const Dropout& dropout : {Dropout{}, kDealtDropout})
    for (const int64_t T : {1, 37, 193})
      for (const int64_t size : {8, 64})
        for (const int64_t parts : {2, 3, 5}) {
          const auto seed = static_cast<uint32_t>(T + size + parts);
          for (const int64_t lists : {1, 2})
            expect_rows_of_the_whole({2, T, 4, 9, true, 2}, {}, parts, dropout,
                                     test::random_blocks({.size = size, .lists = lists, .seed = seed}, T, T));
          const auto end = static_cast<int32_t>(2 * T);
          expect_rows_of_the_whole({2, T, 4, 16, AttentionMask(true, true), 1},
                                   {0, std::min(3, end - 1), end / 2, end - 1, end}, parts, dropout,
                                   test::random_blocks({.size = size, .seed = seed}, T, T));
        }
}

// Kernels take whole tiles of queries for neighbours.
TEST_F(DealtQueries, OfASparseBlockThatAreNoNeighboursAreRefused) {
  const AttentionShape whole{1, 40, 2, 8, true};
  AttentionShape dealt{1, 22, 2, 8, AttentionMask::of_dealt_queries(), 2, 40};
  Inputs own = inputs_apart(dealt);
  own.tables = tables_of(whole, {}, rows_of_part(whole, 2, 0), dealt.tokens);
  own.tables.blocks = list(dealt, test::random_blocks({.size = 8}, dealt.tokens, dealt.kv_tokens));
  const std::string text = message_of([&] { run_apart(plan_for(AttentionKind::kFlash, dealt), own, {}); });
  EXPECT_TRUE(says(text, {"sparse block", "tokens 4 and 10 in block 0"})) << text;
}

// Two ranks that count as the same tokens would drop what differs from the whole by a tenth of all elements;
// here the tokens are those of another part, and nothing else is wrong.
TEST_F(DealtQueries, OfOtherTokensDropOtherKeys) {
  const AttentionShape whole{1, 40, 2, 8, true}, dealt{1, 22, 2, 8, AttentionMask::of_dealt_queries(), 2, 40};
  const DealtRows rows = rows_of_part(whole, 2, 0), others = rows_of_part(whole, 2, 1);
  const Inputs in = inputs_apart(whole);
  Inputs own{taken_rows(make, in.q, rows, 22), in.k, in.v, taken_rows(make, in.dy, rows, 22),
             tables_of(whole, {}, rows, 22)};
  for (const AttentionKind kind : kKinds) {
    const AttentionPlan plan = plan_for(kind, dealt, 3, true);
    const MaskTables right = own.tables;
    const std::vector<float> y = values_of(run_apart(plan, own, kDealtDropout).y);
    own.tables.query_tokens = tables_of(whole, {}, others, 22).query_tokens;
    EXPECT_GT(error_of(values_of(run_apart(plan, own, kDealtDropout).y), doubles_of(y)), 0.1)
        << name_of(kind);
    const std::vector<float> plain = values_of(run_apart(plan, own).y);
    own.tables = right;
    EXPECT_EQ(values_of(run_apart(plan, own).y), plain) << "without dropout nothing reads the tokens";
  }
}

// Scores of up to ten thousand, which are exact: of small integers and powers of two
TEST_F(DealtQueries, LargeScoresDoNotOverflow) {
  const AttentionShape whole{1, 40, 2, 16, true},
      dealt{1, 22, 2, 16, AttentionMask::of_dealt_queries(), 2, 40};
  const Inputs in = inputs_apart(whole);
  for (const Heads& heads : {in.q, in.k})
    for (float& x : floats(heads.tensor)) x = std::round(4 * x) * 8;
  for (const AttentionKind kind : kKinds) {
    const Result all = run_apart(plan_for(kind, whole), in);
    for (const int64_t part : {0, 1}) {
      const DealtRows rows = rows_of_part(whole, 2, part);
      const Result r = run_apart(plan_for(kind, dealt),
                                 {taken_rows(make, in.q, rows, 22), in.k, in.v,
                                  taken_rows(make, in.dy, rows, 22), tables_of(whole, {}, rows, 22)});
      for (const auto& [got, want] : {std::pair{Heads{r.y, 0, 2}, Heads{all.y, 0, 2}}, {r.dq, all.dq}})
        EXPECT_LT(error_of(values_of(got), doubles_of(values_of(taken_rows(make, want, rows, 22))), 1),
                  tolerance::kCpuAttention)
            << name_of(kind) << " part " << part;
      for (const Heads& heads : {r.dk, r.dv})
        for (const float x : values_of(heads)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST_F(DealtQueries, DropoutNeedsTheirTokens) {
  const AttentionShape whole{1, 40, 2, 8, true}, dealt{1, 22, 2, 8, AttentionMask::of_dealt_queries(), 2, 40};
  const DealtRows rows = rows_of_part(whole, 2, 0);
  const Inputs in = inputs_apart(whole);
  Inputs own{taken_rows(make, in.q, rows, 22), in.k, in.v, taken_rows(make, in.dy, rows, 22),
             tables_of(whole, {}, rows, 22)};
  const Tensor tokens = own.tables.query_tokens;
  const auto expect_words = [&](const AttentionShape& s, std::initializer_list<std::string_view> words) {
    const AttentionPlan plan = plan_for(AttentionKind::kFlash, s, 3, true);
    EXPECT_TRUE(says(message_of([&] { run_apart(plan, own, kDealtDropout); }), words));
  };
  own.tables.query_tokens = {};
  expect_words(dealt, {"query_tokens ", "int32 [1, 22] on cpu"});
  run_apart(plan_for(AttentionKind::kFlash, dealt, 3, true), own);  // nothing is dropped
  own.tables = {.query_tokens = tokens};
  own.k = taken_rows(make, in.k, rows, 22), own.v = taken_rows(make, in.v, rows, 22);
  expect_words({1, 22, 2, 8, true}, {"query_tokens ", "dealt queries", "mask: causal"});
}

// A head of a call counts as head place % Dropout::kHeads + head.
TEST_F(DealtQueries, SomeHeadsAtATimeAreThoseOfTheWhole) {
  const AttentionShape all{2, 70, 6, 12, true, 2}, half{2, 70, 3, 12, true, 1};
  const Inputs in = inputs_apart(all);
  for (const AttentionKind kind : kKinds) {
    const Result whole = run_apart(plan_for(kind, all, 3, true), in, kDealtDropout);
    for (const int64_t first : {0, 3}) {
      const auto heads = [&](const Heads& of_all) {
        return Heads{of_all.tensor, of_all.first + first * of_all.count / 6, of_all.count / 2};
      };
      const Tensor dy = make.empty({2, 70, 3, 12});
      copy_heads(heads({in.dy, 0, 6}), {dy, 0, 3});
      Dropout dropout = kDealtDropout;
      dropout.place += static_cast<uint32_t>(first);
      const Result r =
          run_apart(plan_for(kind, half, 3, true), {heads(in.q), heads(in.k), heads(in.v), dy}, dropout);
      for (const auto& [got, want] : {std::pair{Heads{r.y, 0, 3}, Heads{whole.y, 0, 6}},
                                      {r.dq, whole.dq},
                                      {r.dk, whole.dk},
                                      {r.dv, whole.dv}})
        EXPECT_LT(error_of(values_of(got), doubles_of(values_of(heads(want)))), tolerance::kCpuAttention)
            << name_of(kind) << ", heads from " << first << " on";
    }
  }
}

}  // namespace
}  // namespace tessera::testing
