// Attention as an operation of the backend, on CUDA against the CPU backend.
#include <algorithm>

#include "kernels/attention/cudnn.h"
#include "tests/attention_reference.h"
#include "tests/cuda/twin.h"
#include "tests/documents.h"
#include "tests/random_blocks.h"
#include "train/session/context_deal.h"

namespace tessera {
namespace {

enum class Layout { kPacked, kApart };

struct MaskTwins {
  Twin documents = {}, seen_by = {}, query_tokens = {}, blocks = {};

  template <class On>
  MaskTables tables(const On& on) const {
    return {.documents = on(documents),
            .seen_by = on(seen_by),
            .query_tokens = on(query_tokens),
            .blocks = on(blocks)};
  }
};

// q, k and v, or their gradients: heads of one tensor [B, T, H + 2K, D], or tensors of their own
struct Projections {
  AttentionShape shape;
  std::vector<Twin> tensors;  // one, or three

  template <class On>
  PackedHeads heads(const On& on) const {
    PackedHeads heads(on(tensors[0]), shape);
    if (tensors.size() > 1) {
      heads.k = {on(tensors[1]), 0, shape.kv_heads};
      heads.v = {on(tensors[2]), 0, shape.kv_heads};
    }
    return heads;
  }
};

class CudaAttention : public CudaTest {
 protected:
  template <class MakeTwin>
  static Projections projections(const AttentionShape& s, Layout layout, const MakeTwin& make) {
    const auto of_heads = [&](int64_t tokens, int64_t heads) {
      return make(Shape{s.batch, tokens, heads, s.head_dim});
    };
    if (layout == Layout::kPacked) return {s, {of_heads(s.tokens, s.heads + 2 * s.kv_heads)}};
    const auto of_keys = [&] { return of_heads(s.kv_tokens, s.kv_heads); };
    return {s, {of_heads(s.tokens, s.heads), of_keys(), of_keys()}};
  }

  void compare(AttentionKind kind, DType dtype, const AttentionShape& s, Layout layout = Layout::kPacked,
               const Dropout& dropout = {}, const MaskTwins& tables = {}) {
    // Single elements: naive rounds the scores, of a size up to 5, before
    // the exponential multiplies their errors.
    const double slack = kind == AttentionKind::kNaive ? 16 : 4;
    SCOPED_TRACE(fmt::format("{} {} B {} T {} keys {} H {} K {} D {} {} {} dropout {}", name_of(kind),
                             name_of(dtype), s.batch, s.tokens, s.kv_tokens, s.heads, s.kv_heads, s.head_dim,
                             to_string(s.mask), layout == Layout::kPacked ? "packed" : "apart",
                             dropout.threshold));
    const bool naive = kind == AttentionKind::kNaive;
    const AttentionPlan on_cpu = choose_attention({.kind = naive ? kind : AttentionKind::kFlash,
                                                   .shape = s,
                                                   .dtype = DType::kF32,
                                                   .device = {},
                                                   .dropout = static_cast<bool>(dropout)});
    const AttentionPlan on_cuda = choose_attention({.kind = kind,
                                                    .shape = s,
                                                    .dtype = dtype,
                                                    .device = cuda().backend().traits(),
                                                    .dropout = static_cast<bool>(dropout)});
    const Shape heads{s.batch, s.tokens, s.heads, s.head_dim};
    const Projections qkv = projections(s, layout, [&](Shape shape) { return input(dtype, shape); });
    const Twin y = output(dtype, heads);
    const Twin saved = output(on_cuda.saved_dtype, on_cuda.saved_shape);
    const auto scratch_of = [&](int64_t on_cpu_bytes, int64_t on_cuda_bytes) {
      return Twin{output(DType::kF32, {on_cpu_bytes / 4 + 1}).cpu,
                  output(DType::kF32, {on_cuda_bytes / 4 + 1}).cuda};
    };
    const Twin forward_scratch = scratch_of(on_cpu.forward_workspace_bytes, on_cuda.forward_workspace_bytes);
    run_on_both({y, saved}, [&](auto on) {
      const PackedHeads in = qkv.heads(on);
      return AttentionForward{.plan = on(on_cpu, on_cuda),
                              .q = in.q,
                              .k = in.k,
                              .v = in.v,
                              .y = all_heads(on(y)),
                              .saved = on(saved),
                              .workspace = on(forward_scratch),
                              .dropout = dropout,
                              .tables = tables.tables(on)};
    });
    expect_same(y, "y", slack);
    expect_same_norm(y, "y");
    expect_same(saved, on_cuda.saved_name, kind == AttentionKind::kNaive ? slack : 100 * slack);

    const Twin dy = input(dtype, heads);
    const Projections gradients = projections(s, layout, [&](Shape shape) { return output(dtype, shape); });
    const Twin scratch = scratch_of(on_cpu.backward_workspace_bytes, on_cuda.backward_workspace_bytes);
    run_on_both(gradients.tensors, [&](auto on) {
      const PackedHeads in = qkv.heads(on), out = gradients.heads(on);
      return AttentionBackward{.plan = on(on_cpu, on_cuda),
                               .q = in.q,
                               .k = in.k,
                               .v = in.v,
                               .y = all_heads(on(y)),
                               .saved = on(saved),
                               .dy = all_heads(on(dy)),
                               .dq = out.q,
                               .dk = out.k,
                               .dv = out.v,
                               .workspace = on(scratch),
                               .dropout = dropout,
                               .tables = tables.tables(on)};
    });
    for (const Twin& gradient : gradients.tensors) {
      if (!naive && dtype == DType::kBF16) {
        expect_near_largest(gradient, tolerance::attention::kBf16Gradient);
      } else {
        expect_same(gradient, "dqkv", slack);
      }
      expect_same_norm(gradient, "dqkv", 2);
    }
  }

  // None where the mask has none
  MaskTwins documents_of(const AttentionShape& s, const std::vector<int32_t>& cumulative) {
    if (!s.mask.documents) return {};
    const std::vector<int32_t> spans = test::documents_from(cumulative, s.batch, s.tokens);
    return {.documents =
                indices({s.batch, s.tokens, 2}, [&](int64_t i) { return spans[static_cast<size_t>(i)]; })};
  }

  // Every rank of a context of some sequences, whose documents have up to `longest` tokens; 0: one document.
  // s.mask.blocks.size: of sparse blocks, whose lists are by chance
  void compare_dealt(AttentionKind kind, DType dtype, AttentionShape s, int64_t ranks, int64_t longest,
                     const Dropout& dropout) {
    const int64_t block = s.mask.blocks.size;
    DealtShape deal{.ranks = ranks, .rank = 0, .batch = s.batch, .all_tokens = s.kv_tokens};
    if (block > 0) deal.seen = {{.sparse = {.window = 1, .block = block}}};
    const std::vector<int32_t> ids(static_cast<size_t>(s.batch * s.kv_tokens));
    std::vector<int32_t> documents;
    if (longest > 0)
      documents = testing::documents_of(testing::random_documents(3, s.batch, s.kv_tokens, longest));
    s.tokens = deal.tokens();
    s.mask = AttentionMask::of_dealt_queries();
    for (; deal.rank < ranks; ++deal.rank) {
      SCOPED_TRACE(fmt::format("rank {} of {}, documents up to {}", deal.rank, ranks, longest));
      Dealt own;
      deal_batch(deal, {.tokens = ids, .targets = ids, .documents = documents}, own);
      Batch batch;
      deal.set_tables({own.numbers.data(), DType::kI32, {deal.numbers()}, Device::kCpu}, batch);
      const auto twin = [&](const Tensor& table) {
        return indices(table.shape, [&](int64_t i) { return table.as<int32_t>()[i]; });
      };
      MaskTwins tables{twin(batch.documents), twin(batch.seen_by), twin(batch.places)};
      if (block > 0) {
        const test::BlockCase shown = test::random_blocks(
            {.size = block, .lists = 2, .seed = static_cast<uint32_t>(deal.rank + 1)}, s.tokens, s.kv_tokens);
        const BlockLists lists = test::lists_of(shown, s.tokens, s.kv_tokens);
        s.mask.blocks = lists.shape();
        tables.blocks = indices({lists.shape().numbers()},
                                [&](int64_t i) { return lists.numbers()[static_cast<size_t>(i)]; });
      }
      compare(kind, dtype, s, Layout::kApart, dropout, tables);
    }
  }

  void compare_all_dealt(const Dropout& dropout) {
    const auto shape = [](int64_t batch, int64_t heads, int64_t head_dim, int64_t kv_heads, int64_t keys) {
      return AttentionShape{.batch = batch,
                            .tokens = 0,
                            .heads = heads,
                            .head_dim = head_dim,
                            .kv_heads = kv_heads,
                            .kv_tokens = keys};
    };
    for (const DType dtype : kReal)
      for (const int64_t longest : {0, 90}) {
        for (const int64_t D : {64, 128, 80})
          compare_dealt(AttentionKind::kFlash, dtype, shape(2, 4, D, 2, 400), 3, longest, dropout);
        compare_dealt(AttentionKind::kFlash, dtype, shape(1, 2, 192, 2, 131), 2, longest, dropout);
        compare_dealt(AttentionKind::kNaive, dtype, shape(2, 4, 32, 2, 131), 3, longest, dropout);
      }
    compare_dealt(AttentionKind::kFlash, DType::kBF16, shape(1, 4, 128, 1, 1500), 2, 700, dropout);
    // More blocks of keys than multiprocessors
    compare_dealt(AttentionKind::kFlash, DType::kBF16, shape(1, 8, 64, 8, 17'003), 2, 5000, dropout);
    compare_dealt(AttentionKind::kFlash, DType::kBF16, shape(1, 10, 128, 5, 17'003), 2, 5000, dropout);
  }

  // As the fused kernels' own tests measure: in long causal sequences the first rows' gradients, and the
  // errors of their rounded probabilities, are many times the tensor's root mean square.
  void expect_near_largest(const Twin& twin, double allowed) {
    const std::vector<float> got = floats_of(twin.cuda);
    const float* want = twin.cpu.as<float>();
    double worst = 0, largest = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double off = std::abs(static_cast<double>(got[i]) - want[i]);
      worst = off <= worst ? worst : off;  // NaN goes in, and stays
      if (std::isnan(worst)) break;
      largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    }
    EXPECT_LE(worst, allowed * largest) << twin.cuda.to_string();
  }
};

TEST_F(CudaAttention, Naive) {
  for (const DType dtype : kReal) {
    for (const bool causal : {true, false}) {
      for (const int64_t T : {1, 2, 63, 65, 127, 129, 256})
        compare(AttentionKind::kNaive, dtype, {2, T, 3, 64, causal});
      compare(AttentionKind::kNaive, dtype, {3, 40, 1, 20, causal});
      compare(AttentionKind::kNaive, dtype, {1, 1000, 2, 16, causal});
    }
  }
}

TEST_F(CudaAttention, NaiveServesBiasesAndCaps) {
  for (const DType dtype : kReal)
    for (const AttentionScores scores : {AttentionScores{.alibi_heads = 6}, {.cap = 1.5f}, {.cap = 50}})
      for (const int64_t T : {1, 65, 129}) {
        AttentionShape s{2, T, 6, 32, true, 2};
        s.scores = scores;
        compare(AttentionKind::kNaive, dtype, s);
        compare(AttentionKind::kNaive, dtype, s, Layout::kPacked, {.threshold = 51, .key = 9});
      }
}

TEST_F(CudaAttention, NaiveServesEveryMask) {
  const auto causal = [](int64_t window, int64_t offset, bool documents = false) {
    AttentionMask mask(true, documents);
    mask.window = window, mask.offset = offset;
    return mask;
  };
  const Dropout dropout{.threshold = 51, .key = 99, .place = 0, .first_sequence = 5};
  for (const DType dtype : kReal)
    for (const Dropout& drop : {Dropout{}, dropout}) {
      const auto compare_apart = [&](const AttentionShape& s, const std::vector<int32_t>& cumulative = {}) {
        compare(AttentionKind::kNaive, dtype, s, Layout::kApart, drop, documents_of(s, cumulative));
      };
      for (const int64_t T : {17, 64, 129, 256}) {
        for (const int64_t window : {2, 9, 100}) compare_apart({2, T, 4, 32, causal(window, 0), 2});
        for (const int64_t N : {40, 65, 104}) {  // rows of 40 elements are read in packs, those of 65 are not
          compare_apart({2, T, 4, 32, false, 2, N});
          for (const int64_t offset : {-10, 5}) compare_apart({2, T, 4, 32, causal(0, offset), 2, N});
          compare_apart({1, T, 4, 32, causal(12, -9), 4, N});
        }
        const auto end = static_cast<int32_t>(2 * T);
        for (const AttentionMask& mask : {causal(0, 0, true), causal(5, 0, true), AttentionMask(false, true)})
          compare_apart({2, T, 4, 32, mask, 2}, {0, 1, 8, 15, end - 3, end});
      }
    }
}

TEST_F(CudaAttention, QueriesChooseBlocks) {
  for (const AttentionKind kind : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const DType dtype : kReal)
      for (const int64_t T : {17, 64, 129, 256}) {
        AttentionMask mask(true), of_documents(true, true);
        mask.choice = of_documents.choice = {.size = 16, .count = 3};
        const AttentionShape s{2, T, 4, 32, mask, 2}, packed{2, T, 4, 32, of_documents, 2};
        const auto end = static_cast<int32_t>(2 * T);
        compare(kind, dtype, s, Layout::kApart);
        compare(kind, dtype, packed, Layout::kApart, {}, documents_of(packed, {0, 1, 8, 15, end - 3, end}));
        mask.offset = 37;
        compare(kind, dtype, {2, T, 4, 32, mask, 2, 37 + T}, Layout::kApart);
      }
}

TEST_F(CudaAttention, OfDealtQueries) { compare_all_dealt({}); }
TEST_F(CudaAttention, OfDealtQueriesWithDropout) {
  compare_all_dealt(
      {.threshold = 51, .key = 0x123456789abcdef, .place = 3 * Dropout::kHeads, .first_sequence = 77});
}

// Rows of a rank's query blocks. Dropout and ALiBi ask which tokens they are, lists do not.
TEST_F(CudaAttention, OfDealtQueriesAndSparseBlocks) {
  AttentionMask mask(true);
  mask.blocks.size = 128;
  for (const DType dtype : kReal)
    for (const int64_t longest : {0, 90}) {
      AttentionShape s{.batch = 2, .tokens = 0, .heads = 4, .head_dim = 64, .mask = mask, .kv_heads = 2};
      s.kv_tokens = 450;
      compare_dealt(AttentionKind::kFlash, dtype, s, 3, longest, {});
      compare_dealt(AttentionKind::kNaive, dtype, s, 3, longest, {});
      compare_dealt(AttentionKind::kNaive, dtype, s, 2, longest, {.threshold = 51, .key = 9});
      s.scores.alibi_heads = 4;
      compare_dealt(AttentionKind::kNaive, dtype, s, 3, longest, {});
    }
}

TEST_F(CudaAttention, NaiveSurvivesLargeScores) {
  for (const DType dtype : kReal) {
    const AttentionShape s{1, 129, 2, 64, true};
    const AttentionPlan plan = choose_attention(
        {.kind = AttentionKind::kNaive, .shape = s, .dtype = dtype, .device = cuda().backend().traits()});
    const Twin qkv = input(dtype, {1, 129, 6, 64}, 100),
               y = output(dtype, {1, 129, 2, 64});  // scores near 1e4
    const Twin saved = output(dtype, plan.saved_shape);
    const PackedHeads in(qkv.cuda, s);
    cuda().run(AttentionForward{
        .plan = plan, .q = in.q, .k = in.k, .v = in.v, .y = all_heads(y.cuda), .saved = saved.cuda});
    for (const float value : floats_of(y.cuda)) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST_F(CudaAttention, DropsWhatTheCpuDrops) {
  const Dropout dropout{
      .threshold = 26, .key = 0x123456789abcdef, .place = 3 * Dropout::kHeads, .first_sequence = 77};
  for (const AttentionKind kind : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const DType dtype : kReal)
      for (const bool causal : {true, false}) {
        for (const int64_t T : {1, 17, 129, 193})
          compare(kind, dtype, {2, T, 6, 64, causal, 3}, Layout::kPacked, dropout);
        compare(kind, dtype, {3, 200, 4, 16, causal, 1}, Layout::kApart, dropout);
        compare(kind, dtype, {1, 1100, 2, 32, causal}, Layout::kPacked, dropout);
      }
}

// The kernels have tests of their own; this one is for the strides of the packed projections.
TEST_F(CudaAttention, FlashReadsPackedProjections) {
  for (const DType dtype : kReal)
    for (const bool causal : {true, false}) compare(AttentionKind::kFlash, dtype, {2, 129, 3, 64, causal});
}

TEST_F(CudaAttention, FlashReadsTensorsOfTheirOwn) {
  for (const DType dtype : kReal)
    for (const bool causal : {true, false})
      compare(AttentionKind::kFlash, dtype, {2, 129, 4, 64, causal, 2}, Layout::kApart);
}

TEST_F(CudaAttention, NaiveSharesKeysAndValues) {
  for (const DType dtype : kReal)
    for (const bool causal : {true, false})
      for (const Layout layout : {Layout::kPacked, Layout::kApart}) {
        for (const int64_t K : {1, 2, 3, 6})
          compare(AttentionKind::kNaive, dtype, {2, 65, 6, 64, causal, K}, layout);
        compare(AttentionKind::kNaive, dtype, {1, 256, 32, 64, causal, 8}, layout);
        compare(AttentionKind::kNaive, dtype, {3, 40, 4, 20, causal, 2}, layout);
      }
}

TEST_F(CudaAttention, FlashSharesKeysAndValues) {
  for (const DType dtype : kReal)
    for (const bool causal : {true, false})
      for (const int64_t D : {64, 128}) {
        for (const int64_t K : {1, 2, 3, 6}) compare(AttentionKind::kFlash, dtype, {2, 129, 6, D, causal, K});
        compare(AttentionKind::kFlash, dtype, {1, 257, 32, D, causal, 8});
      }
  for (const int64_t D : {16, 32}) compare(AttentionKind::kFlash, DType::kF32, {2, 129, 6, D, true, 2});
}

TEST_F(CudaAttention, CudnnSharesKeysAndValues) {
  std::string why_not;
  if (!attention::cudnn_available(why_not)) GTEST_SKIP() << "no cuDNN: " << why_not;
  for (const bool causal : {true, false})
    for (const int64_t D : {64, 80, 128}) {
      for (const int64_t K : {1, 2, 3})
        compare(AttentionKind::kCudnn, DType::kBF16, {2, 129, 6, D, causal, K});
      compare(AttentionKind::kCudnn, DType::kBF16, {1, 256, 32, D, causal, 8}, Layout::kApart);
    }
}

TEST_F(CudaAttention, CudnnReadsPackedProjections) {
  std::string why_not;
  if (!attention::cudnn_available(why_not)) GTEST_SKIP() << "no cuDNN: " << why_not;
  for (const bool causal : {true, false}) {
    for (const int64_t T : {2, 63, 64, 129, 1000})
      for (const int64_t D : {64, 128}) compare(AttentionKind::kCudnn, DType::kBF16, {2, T, 3, D, causal});
    for (const int64_t D : {8, 16, 48, 80, 120})
      compare(AttentionKind::kCudnn, DType::kBF16, {2, 129, 3, D, causal});
  }
}

}  // namespace
}  // namespace tessera
