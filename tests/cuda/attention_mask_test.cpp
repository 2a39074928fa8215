// attention.h under every mask: windows, documents, offsets, keys of another number and dealt queries, of
// every family that the device runs, against fp64; and attn_documents().
#include <algorithm>
#include <array>
#include <numeric>

#include "tests/cuda/attention_problem.h"
#include "tests/dealt_mask.h"

namespace tessera::test {
namespace {

// Cumulative lengths of documents that follow one another through all sequences: `lengths`, again and again
std::vector<int32_t> cumulative_of(const std::vector<int32_t>& lengths, int64_t all_tokens) {
  std::vector<int32_t> cumulative = {0};
  for (size_t d = 0; cumulative.back() < all_tokens; ++d) {
    const int64_t end = int64_t{cumulative.back()} + lengths[d % lengths.size()];
    cumulative.push_back(static_cast<int32_t>(std::min(end, all_tokens)));
  }
  return cumulative;
}
std::vector<int32_t> documents_of(const std::vector<int32_t>& lengths, int64_t batch, int64_t tokens) {
  return documents_from(cumulative_of(lengths, batch * tokens), batch, tokens);
}
// Of 1 to `most` tokens
std::vector<int32_t> random_lengths(int64_t count, int32_t most, uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<int32_t> lengths(count);
  for (int32_t& x : lengths) x = 1 + static_cast<int32_t>(generator() % most);
  return lengths;
}
// Of one token, and around the sizes of tiles
const std::vector<int32_t> kRagged = {1,   63, 1, 64,  65,  127, 2,  128, 129, 3,
                                      191, 1,  1, 192, 193, 80,  79, 240, 17};

// Of every query how many keys it sees, and of every key how many queries
struct Seen {
  std::vector<int64_t> keys, queries;  // [batch, tokens], [batch, kv_tokens]

  explicit Seen(const AttentionCase& c) : keys(c.batch * c.tokens), queries(c.batch * c.kv_tokens) {
    for (int64_t token = 0; token < c.batch * c.tokens; ++token)
      for (int64_t key = 0; key < c.kv_tokens; ++key)
        if (c.mask.sees(token, token % c.tokens, key)) {
          ++keys[token];
          ++queries[token / c.tokens * c.kv_tokens + key];
        }
  }
};

int64_t not_zero(const std::vector<double>& x, int64_t row, int64_t head_dim) {
  return std::count_if(x.begin() + row * head_dim, x.begin() + (row + 1) * head_dim,
                       [](double value) { return value != 0; });
}

// A query without keys: out = 0, LSE = -inf, dQ = 0. A key without queries: dK = dV = 0. To the bit.
void expect_nothing_where_nothing_is_seen(const AttentionCase& c, const Seen& seen, const Outputs& r) {
  int64_t wrong = 0;
  for (int64_t b = 0; b < c.batch; ++b) {
    for (int64_t t = 0; t < c.tokens; ++t) {
      if (seen.keys[b * c.tokens + t] > 0) continue;
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t row = (b * c.heads + h) * c.tokens + t;
        wrong += not_zero(r.out, row, c.head_dim) + not_zero(r.dq, row, c.head_dim);
        wrong += r.lse[row] != -INFINITY;
      }
    }
    for (int64_t t = 0; t < c.kv_tokens; ++t) {
      if (seen.queries[b * c.kv_tokens + t] > 0) continue;
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        const int64_t row = (b * c.kv_heads + h) * c.kv_tokens + t;
        wrong += not_zero(r.dk, row, c.head_dim) + not_zero(r.dv, row, c.head_dim);
      }
    }
  }
  EXPECT_EQ(wrong, 0) << "elements of rows that see nothing, or that nothing sees";
}

std::string text_of(const AttentionCase& c, bool bf16, int arch) {
  std::ostringstream text;
  text << (bf16 ? "bf16" : "fp32") << ", arch " << arch << ", " << c.batch << " x " << c.tokens
       << " queries, " << c.kv_tokens << " keys, " << c.heads << " heads of " << c.head_dim << ", "
       << c.kv_heads << " of keys" << (c.mask.causal ? ", causal" : "") << ", window " << c.mask.window
       << ", offset " << c.mask.offset << (c.mask.documents.empty() ? "" : ", documents") << ", threshold "
       << c.dropout.threshold;
  return text.str();
}

void expect_agreement(const AttentionCase& c, bool bf16, const Inputs& inputs, const AttentionReference& want,
                      Packing packing) {
  const Seen seen(c);
  // dS of a query with one key, or with one that dropout leaves, is what is left of two nearly equal terms:
  // see cancelled_terms().
  const bool few_keys = c.dropout || *std::ranges::max_element(seen.keys) <= 2;
  for (int arch : archs_here(bf16)) {
    Problem problem(c, bf16, packing, inputs, arch);
    SCOPED_TRACE(text_of(c, bf16, arch));
    const Outputs r = problem.run();
    expect_within(errors_of(r, want, few_keys ? cancelled_terms(c, inputs) : 0), limits(bf16));
    expect_nothing_where_nothing_is_seen(c, seen, r);
  }
}

class AttentionMask : public AttentionKernels, public ::testing::WithParamInterface<std::tuple<bool, int>> {
 protected:
  static bool bf16() { return std::get<0>(GetParam()); }
  static int head_dim() { return std::get<1>(GetParam()); }

  // The mask of a case may depend on its sizes.
  static AttentionCase shape(int64_t batch, int64_t tokens, const MaskCase& mask, int64_t kv_heads = 1,
                             int64_t group = 2) {
    return {batch, tokens, kv_heads * group, kv_heads, head_dim(), mask, 1 / std::sqrt(head_dim())};
  }
  // What a rank of a context has; empty `documents`: each sequence is one
  static AttentionCase dealt(int64_t batch, int64_t keys, const std::vector<int32_t>& documents, int64_t rank,
                             int64_t ranks, int64_t kv_heads = 1) {
    const DealtShape deal{.ranks = ranks, .rank = rank, .batch = batch, .all_tokens = keys};
    AttentionCase c = shape(batch, deal.tokens(), dealt_mask(deal, documents), kv_heads);
    c.kv_tokens = keys;
    return c;
  }
  static void expect_fp64(const AttentionCase& c, Packing packing = Packing::kSeparate) {
    const Inputs inputs(c, bf16());
    expect_agreement(c, bf16(), inputs, reference_attention(c, inputs.q, inputs.k, inputs.v, inputs.dout),
                     packing);
  }
  // In bf16 against the fp32 kernels, which the tests in fp32 hold to fp64
  static void expect_fp32(const AttentionCase& c, Packing packing = Packing::kPackedQkv) {
    if (!bf16()) return;
    const Inputs inputs(c, true);
    const Outputs fp32 = Problem(c, false, Packing::kSeparate, inputs, device_arch()).run();
    expect_agreement(c, true, inputs,
                     {fp32.out, {fp32.lse.begin(), fp32.lse.end()}, fp32.dq, fp32.dk, fp32.dv}, packing);
  }
  static bool whole() { return head_dim() == 64 || head_dim() == 128; }  // heads that fill their tiles
};

TEST_P(AttentionMask, WindowsAgreeWithFp64) {
  for (int64_t tokens : {1, 2, 63, 65, 129, 203, 256, 321})
    for (int64_t window : {1, 2, 63, 64, 65, 100, 128, 129, 1000})
      if (whole() || window % 64 != 0) expect_fp64(shape(tokens < 100 ? 2 : 1, tokens, {true, window}));
  expect_fp64(shape(1, 700, {true, 190}, 2, 1), Packing::kPackedQkv);
}

// One document ends on and around the edge of a tile, in each sequence at another place.
TEST_P(AttentionMask, DocumentsThatEndAtTilesAgreeWithFp64) {
  constexpr int32_t kTokens = 401;
  for (int32_t end : {1, 48, 63, 64, 65, 80, 127, 128, 129, 160, 191, 192, 193, 240, 320, 400}) {
    if (!whole() && end % 2 == 0 && end % 80 != 0) continue;
    for (bool causal : {true, false}) {
      const std::vector<int32_t> cumulative = {0, end, kTokens, 2 * kTokens - end, 2 * kTokens};
      expect_fp64(shape(2, kTokens, {causal, documents_from(cumulative, 2, kTokens)}, 1, 1));
    }
  }
}

TEST_P(AttentionMask, RaggedDocumentsAgreeWithFp64) {
  for (int64_t tokens : {1, 37, 64, 129, 333, 512})
    for (bool causal : {true, false})
      for (int64_t group : {1, 3}) {
        const AttentionCase c = shape(3, tokens, {causal, documents_of(kRagged, 3, tokens)}, 2, group);
        expect_fp64(c, Packing::kPackedApart);
      }
}

TEST_P(AttentionMask, DocumentsOfOneTokenAgreeWithFp64) {
  for (int64_t tokens : {1, 64, 100, 193})
    for (bool causal : {true, false}) expect_fp64(shape(2, tokens, {causal, documents_of({1}, 2, tokens)}));
}

TEST_P(AttentionMask, WindowsWithinDocumentsAgreeWithFp64) {
  for (int64_t tokens : {65, 333, 512})
    for (int64_t window : {1, 50, 64, 1000})
      expect_fp64(shape(2, tokens, {true, documents_of(kRagged, 2, tokens), window}), Packing::kPackedQkv);
}

TEST_P(AttentionMask, ManyDocumentsAgreeWithFp64) {
  constexpr int64_t kTokens = 3100;
  const std::vector<int32_t> cumulative = cumulative_of(random_lengths(4000, 2, 7), kTokens);
  ASSERT_GE(cumulative.size(), 2001u);
  for (bool causal : {true, false})
    expect_fp64(shape(1, kTokens, {causal, documents_from(cumulative, 1, kTokens)}, 1, 1));
  const std::vector<int32_t> lengths = random_lengths(4000, 3, 11);
  for (bool causal : {true, false})
    expect_fp32(shape(2, 2000, {causal, documents_of(lengths, 2, 2000)}, 2, 1));
}

// A chunk of queries, and keys that are fewer or more than queries
TEST_P(AttentionMask, KeysOfAnotherNumberAgreeWithFp64) {
  constexpr std::pair<int64_t, int64_t> kSizes[] = {{1, 200},  {200, 1},  {64, 192}, {192, 64},
                                                    {65, 321}, {321, 65}, {200, 203}};
  for (const auto& [tokens, kv_tokens] : kSizes) {
    const auto expect = [&, queries = tokens, keys = kv_tokens](const MaskCase& mask) {
      AttentionCase c = shape(2, queries, mask);
      c.kv_tokens = keys;
      expect_fp64(c);
    };
    expect({false});
    for (int64_t window : {0, 1, 70})
      for (int64_t offset : {kv_tokens - tokens, int64_t{0}, int64_t{130}, int64_t{-63}, int64_t{-64}})
        expect({true, window, offset});
  }
}

// Where no query of a tile, of all tiles, sees a key, and the other way round
TEST_P(AttentionMask, OffsetsThatHideAllGiveNothing) {
  for (const auto& [tokens, kv_tokens, window, offset] : {std::array<int64_t, 4>{300, 300, 0, -300},
                                                          {300, 300, 0, -299},
                                                          {300, 300, 0, -130},
                                                          {300, 200, 50, 400},
                                                          {300, 200, 50, 248},
                                                          {300, 200, 50, 130},
                                                          {129, 500, 10, 300}}) {
    AttentionCase c = shape(1, tokens, {true, window, offset});
    c.kv_tokens = kv_tokens;
    expect_fp64(c);
  }
}

TEST_P(AttentionMask, DropoutAgreesWithFp64) {
  const auto expect = [](AttentionCase c) {
    c.dropout = {
        .threshold = 51, .key = 0xfedcba9876543210, .place = 5 * Dropout::kHeads, .first_sequence = 3};
    expect_fp64(c);
  };
  for (int64_t tokens : {65, 193, 333}) {
    expect(shape(2, tokens, {true, 70}));
    for (bool causal : {true, false})
      expect(shape(2, tokens, {causal, documents_of(kRagged, 2, tokens)}, 2, 1));
    expect(shape(2, tokens, {true, documents_of(kRagged, 2, tokens), 20}));
    AttentionCase chunk = shape(1, tokens, {true, 0, 200});
    chunk.kv_tokens = 200 + tokens;
    expect(chunk);
  }
}

// What each of three ranks has of sequences of `keys` tokens, padding included
TEST_P(AttentionMask, DealtQueriesAgreeWithFp64) {
  for (int64_t keys : {17, 200, 333})
    for (bool documents : {false, true})
      for (int threshold : {0, 51})
        for (int64_t rank = 0; rank < 3; ++rank) {
          AttentionCase c =
              dealt(2, keys, documents ? documents_of(kRagged, 2, keys) : std::vector<int32_t>{}, rank, 3);
          if (threshold > 0)
            c.dropout = {.threshold = threshold,
                         .key = 0xfedcba9876543210,
                         .place = 5 * Dropout::kHeads + 11,
                         .first_sequence = 3};
          expect_fp64(c);
        }
}

// Between queries that follow one another lie many keys that none of them sees, some queries in between see
// nothing, and the last ones neither.
TEST_P(AttentionMask, DealtQueriesFarApartAgreeWithFp64) {
  struct Row {
    int32_t token, begin, end;
  };
  constexpr int32_t kKeys = 701;
  std::vector<Row> rows;
  const auto add = [&](int32_t first, int32_t last, int32_t document) {
    for (int32_t token = first; token < last; ++token) rows.push_back({token, document, token + 1});
  };
  add(0, 9, 0), add(300, 310, 290), add(310, 311, 310), add(500, 570, 430);
  for (int32_t seen = 570; seen < 600; seen += 10) rows.push_back({0, seen, seen});  // nothing
  add(650, 690, 640);
  for (int i = 0; i < 5; ++i) rows.push_back({0, 695, 695});
  AttentionCase c = shape(1, std::ssize(rows), {false}, 1, 2);
  c.kv_tokens = kKeys;
  int32_t end = 0;  // of the queries that see the key before
  for (int32_t key = 0; key < kKeys; ++key) {
    int32_t begin = end, after = end;
    for (int32_t row = std::ssize(rows) - 1; row >= 0; --row)
      if (rows[row].begin <= key && key < rows[row].end) begin = row, after = std::max(after, row + 1);
    c.mask.seen_by.insert(c.mask.seen_by.end(), {begin, after});
    end = after;
  }
  for (const Row& row : rows) {
    c.mask.documents.insert(c.mask.documents.end(), {row.begin, row.end});
    c.mask.query_tokens.push_back(row.token);
  }
  for (int threshold : {0, 51}) {
    c.dropout = {.threshold = threshold, .key = 0xfedcba9876543210, .place = 0, .first_sequence = 3};
    expect_fp64(c);
  }
}

// More tiles than a GPU has multiprocessors
TEST_P(AttentionMask, ManyTilesAgreeWithFp32) {
  const int64_t batch = whole() ? 16 : 4;  // of heads that do not fill their tiles fewer, for the time
  for (bool causal : {true, false})
    expect_fp32(shape(batch, 512, {causal, documents_of(random_lengths(500, 200, 3), batch, 512)}, 8, 1));
  expect_fp32(shape(batch, 512, {true, 100}, 8, 1));
  expect_fp32(shape(2, 2047, {true, documents_of(random_lengths(50, 600, 5), 2, 2047), 200}, 2, 4));
  AttentionCase chunk = shape(4, 700, {true, 0, 900}, 4, 2);
  chunk.kv_tokens = 1600;
  expect_fp32(chunk, Packing::kSeparate);
}

// More key blocks than a GPU has multiprocessors: the backward on Hopper takes them in waves, two heads in
// turn and one left over, where most are of one document, and otherwise not. Of a rank and of one of two.
TEST_P(AttentionMask, LongDocumentsAgreeWithFp32) {
  if (!whole()) return;
  constexpr int64_t kTokens = 30'011;
  for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{77, 27'000}, {1, 640, 2000, 37}}) {
    const std::vector<int32_t> documents = documents_of(lengths, 1, kTokens);
    const auto expect = [](const AttentionCase& c, Packing packing) {
      expect_fp32(c, packing);
      if (!bf16()) return;
      const Inputs inputs(c, true);
      for (const int arch : archs_here(true)) {
        Problem problem(c, true, packing, inputs, arch);
        EXPECT_TRUE(problem.run_for_bits() == problem.run_for_bits()) << text_of(c, true, arch);
      }
    };
    expect(shape(1, kTokens, {true, documents}, 3, 2), Packing::kPackedQkv);
    expect(dealt(1, kTokens, documents, 1, 2, 3), Packing::kSeparate);
  }
}

TEST_P(AttentionMask, GivesTheSameBits) {
  const auto expect = [](const AttentionCase& c, Packing packing) {
    const Inputs inputs(c, bf16());
    for (int arch : archs_here(bf16())) {
      Problem problem(c, bf16(), packing, inputs, arch);
      const std::vector<uint8_t> bits = problem.run_for_bits();
      for (int repeat = 0; repeat < 10; ++repeat)
        ASSERT_TRUE(problem.run_for_bits() == bits) << text_of(c, bf16(), arch);
    }
  };
  for (bool causal : {true, false})  // more CTAs than fit at a time
    expect(shape(2, 1500, {causal, documents_of(random_lengths(50, 400, 9), 2, 1500)}, 10, 2),
           Packing::kPackedQkv);
  expect(shape(2, 1500, {true, 333}, 10, 2), Packing::kPackedQkv);
  AttentionCase keys = shape(2, 1100, {false}, 10, 2);
  keys.kv_tokens = 1400;
  expect(keys, Packing::kSeparate);
}

// Rows `first` to `first + rows` of every head of [heads, tokens, width]
template <class T>
std::vector<T> rows_of(const std::vector<T>& x, int64_t tokens, int64_t width, int64_t first, int64_t rows) {
  std::vector<T> part;
  for (auto head = x.begin(); head < x.end(); head += tokens * width)
    part.insert(part.end(), head + first * width, head + (first + rows) * width);
  return part;
}

TEST_P(AttentionMask, PackedDocumentsAreLikeSequencesOfTheirOwn) {
  const std::vector<int32_t> lengths = {100, 64, 193, 1, 150};
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (bool causal : {true, false}) {
    const AttentionCase packed = shape(1, tokens, {causal, documents_of(lengths, 1, tokens)});
    const Inputs inputs(packed, bf16());
    for (int arch : archs_here(bf16())) {
      const Outputs all = Problem(packed, bf16(), Packing::kPackedQkv, inputs, arch).run();
      int64_t first = 0;
      for (int64_t length : lengths) {
        const auto part = [&](const std::vector<double>& x) {
          return rows_of(x, tokens, head_dim(), first, length);
        };
        const AttentionCase own = shape(1, length, {causal});
        Inputs its(own, bf16());
        its.q = part(inputs.q), its.k = part(inputs.k), its.v = part(inputs.v), its.dout = part(inputs.dout);
        const Outputs alone = Problem(own, bf16(), Packing::kPackedQkv, its, arch).run();
        const Outputs here = {part(all.out), part(all.dq), part(all.dk), part(all.dv),
                              rows_of(all.lse, tokens, 1, first, length)};
        SCOPED_TRACE(text_of(own, bf16(), arch));
        expect_within(
            errors_of(here, {alone.out, {alone.lse.begin(), alone.lse.end()}, alone.dq, alone.dk, alone.dv},
                      length == 1 ? cancelled_terms(own, its) : 0),
            limits(bf16()));
        first += length;
      }
    }
  }
}

// One document and a window that is wider than the sequence hide nothing.
TEST_P(AttentionMask, MasksThatHideNothingAreLikeNone) {
  constexpr int64_t kTokens = 600;
  const auto expect_like = [](const AttentionCase& plain, const MaskCase& mask) {
    AttentionCase masked = plain;
    masked.mask = mask;
    const Inputs inputs(plain, bf16());
    for (int arch : archs_here(bf16())) {
      const Outputs want = Problem(plain, bf16(), Packing::kPackedQkv, inputs, arch).run();
      const Outputs got = Problem(masked, bf16(), Packing::kPackedQkv, inputs, arch).run();
      SCOPED_TRACE(text_of(masked, bf16(), arch));
      expect_within(errors_of(got, {want.out, {want.lse.begin(), want.lse.end()}, want.dq, want.dk, want.dv}),
                    limits(bf16()));
    }
  };
  expect_like(shape(2, kTokens, {true}), {true, kTokens});
  for (bool causal : {true, false})
    expect_like(shape(2, kTokens, {causal}), {causal, documents_of({kTokens}, 2, kTokens)});
}

std::string name_of_parameter(const ::testing::TestParamInfo<std::tuple<bool, int>>& info) {
  return (std::get<0>(info.param) ? "Bf16" : "F32") + std::to_string(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(AttentionMaskBf16, AttentionMask,
                         ::testing::Combine(::testing::Values(true),
                                            ::testing::Values(16, 40, 64, 80, 96, 128, 192, 256)),
                         name_of_parameter);
INSTANTIATE_TEST_SUITE_P(AttentionMaskF32, AttentionMask,
                         ::testing::Combine(::testing::Values(false),
                                            ::testing::Values(16, 40, 64, 128, 256)),
                         name_of_parameter);

// ---- attn_documents() ----

class AttnDocuments : public AttentionKernels {
 protected:
  static std::vector<int32_t> on_device(const std::vector<int32_t>& cumulative, int64_t batch,
                                        int64_t tokens) {
    GuardedBuffer from(cumulative.size() * sizeof(int32_t)), to(batch * tokens * 2 * sizeof(int32_t));
    const auto* bytes = reinterpret_cast<const uint8_t*>(cumulative.data());
    from.upload({bytes, bytes + from.bytes()});
    const AttnStatus status = attn_documents(reinterpret_cast<const int32_t*>(from.data()),
                                             static_cast<int64_t>(cumulative.size()) - 1, batch, tokens,
                                             reinterpret_cast<int32_t*>(to.data()), nullptr);
    EXPECT_EQ(status, ATTN_OK) << attn_status_text(status);
    cuda_ok(cudaDeviceSynchronize());
    const std::vector<uint8_t> image = to.download();
    std::vector<int32_t> documents(image.size() / sizeof(int32_t));
    std::memcpy(documents.data(), image.data(), image.size());
    return documents;
  }
};

TEST_F(AttnDocuments, AgreeWithTheHost) {
  for (int64_t batch : {1, 3, 7})
    for (int64_t tokens : {1, 5, 64, 257, 1000})
      for (const std::vector<int32_t>& lengths : {std::vector<int32_t>{1},
                                                  {1 << 20},
                                                  kRagged,
                                                  random_lengths(3000, 6, 1),
                                                  random_lengths(100, 800, 2)}) {
        const std::vector<int32_t> cumulative = cumulative_of(lengths, batch * tokens);
        EXPECT_EQ(on_device(cumulative, batch, tokens), documents_from(cumulative, batch, tokens))
            << batch << " x " << tokens << " tokens, " << cumulative.size() - 1 << " documents";
      }
}

// Without a token: before the first, between two, and behind the last
TEST_F(AttnDocuments, EmptyOnesAreSkipped) {
  EXPECT_EQ(on_device({0, 0, 2, 2, 2, 3, 3}, 1, 3), (std::vector<int32_t>{0, 2, 0, 2, 2, 3}));
}

}  // namespace
}  // namespace tessera::test
