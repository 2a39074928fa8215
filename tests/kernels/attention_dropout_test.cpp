// CPU attention under dropout: naive and flash against fp64 with the same mask; the mask itself to the bit,
// read from outputs; refusals.
#include <omp.h>

#include "tests/kernels/attention_heads.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

// A place and a first sequence that are not 0, so that nothing may forget them
Dropout dropout_of(int threshold) {
  return {.threshold = threshold,
          .key = 0x0123456789abcdef,
          .place = 7 * Dropout::kHeads,
          .first_sequence = 1000};
}

AttentionPlan dropping_plan_for(AttentionKind kind, AttentionShape shape, int threads = 3) {
  return plan_for(kind, shape, threads, true);
}

struct AttentionDropout : AttentionHeads {
  void expect_fp64(const AttentionShape& s, int threshold) {
    const Inputs in = packed_inputs(s);
    const test::AttentionReference want = reference_of(s, in, dropout_of(threshold));
    for (const AttentionKind kind : kKinds) {
      SCOPED_TRACE(fmt::format("{} threshold {} H {} K {} T {} D {} {}", name_of(kind), threshold, s.heads,
                               s.kv_heads, s.tokens, s.head_dim, s.mask.causal ? "causal" : "full"));
      const Result r = run(dropping_plan_for(kind, s), in, dropout_of(threshold));
      EXPECT_LT(error_of(values_of(r.y), want.out), tolerance::kCpuAttention);
      EXPECT_LT(error_of(values_of(r.dv), want.dv), tolerance::kCpuAttention);
      if (s.tokens == 1) continue;  // one key: dQ and dK are 0 but for rounding
      EXPECT_LT(error_of(values_of(r.dq), want.dq), tolerance::kCpuAttention);
      EXPECT_LT(error_of(values_of(r.dk), want.dk), tolerance::kCpuAttention);
    }
  }
};

TEST_F(AttentionDropout, MatchesFp64) {
  for (const int64_t T : {1, 17, 33, 129, 193})
    for (const int64_t D : {5, 16, 33})
      for (const bool causal : {true, false}) {
        expect_fp64({2, T, 6, D, causal, 3}, 26);
        expect_fp64({1, T, 2, D, causal}, 128);
      }
  for (const int threshold : {1, 51, 200}) expect_fp64({3, 70, 4, 12, true, 1}, threshold);
  expect_fp64({1, 1000, 2, 8, true, 1}, 51);
}

// The mask, from outputs alone: all keys that a query sees weigh the same, and V has a 1 in column d of key
// first + d. Element [b, h, query, key]: 1 where the key is kept.
template <class Forward>  // of inputs to y
std::vector<int> mask_in_outputs(HostTensors& make, const AttentionShape& s, const Forward& forward) {
  std::vector<int> mask(static_cast<size_t>(s.batch * s.heads * s.tokens * s.tokens));
  for (int64_t first = 0; first < s.tokens; first += s.head_dim) {
    const Tensor qkv = make.zeros({s.batch, s.tokens, s.heads + 2 * s.kv_heads, s.head_dim});
    const PackedHeads in(qkv, s);
    const int64_t last = std::min(s.tokens, first + s.head_dim);
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.kv_heads; ++h)
        for (int64_t key = first; key < last; ++key)
          heads_of<float>(in.v).one_head(b, h).row_begin(key)[key - first] = 1;
    const std::vector<float> y = values_of(forward(in));
    for (int64_t row = 0; row < s.batch * s.heads * s.tokens; ++row)
      for (int64_t key = first; key < last; ++key)
        mask[static_cast<size_t>(row * s.tokens + key)] =
            y[static_cast<size_t>(row * s.head_dim + key - first)] != 0;
  }
  return mask;
}

std::vector<int> mask_of(const AttentionShape& s, const Dropout& dropout) {
  std::vector<int> mask;
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < s.heads; ++h)
      for (int64_t query = 0; query < s.tokens; ++query)
        for (int64_t key = 0; key < s.tokens; ++key) {
          const uint32_t kept =
              DropoutMask(dropout).kept(static_cast<uint32_t>(b), static_cast<uint32_t>(h),
                                        static_cast<uint32_t>(query), static_cast<uint32_t>(key / 32));
          mask.push_back((!s.mask.causal || key <= query) && (kept >> key % 32 & 1));
        }
  return mask;
}

TEST_F(AttentionDropout, DropsTheKeysOfTheMask) {
  for (const AttentionKind kind : kKinds)
    for (const bool causal : {true, false})
      for (const int64_t T : {1, 31, 130}) {
        const AttentionShape s{2, T, 3, 24, causal, 1};
        const AttentionPlan plan = dropping_plan_for(kind, s);
        const Tensor y = make.empty({s.batch, T, s.heads, s.head_dim}), saved = make.empty(plan.saved_shape),
                     workspace = workspace_of(plan);
        const std::vector<int> mask = mask_in_outputs(make, s, [&](const PackedHeads& in) {
          cpu.run(forward(plan, {in.q, in.k, in.v}, {.y = y, .saved = saved}, workspace, dropout_of(77)));
          return y;
        });
        EXPECT_EQ(mask, mask_of(s, dropout_of(77))) << name_of(kind) << " T " << T;
      }
}

TEST_F(AttentionDropout, TheMaskDoesNotDependOnTheTile) {
  const AttentionShape s{1, 77, 2, 20, true};
  const AttentionPlan plan = dropping_plan_for(AttentionKind::kFlash, s);
  const Inputs in = packed_inputs(s);
  const Result whole = run(plan, in, dropout_of(51));
  for (const int64_t queries : {1, 3, 50, 100})
    for (const int64_t keys : {1, 7, 32, 48, 76, 200}) {
      SCOPED_TRACE(fmt::format("{} x {}", queries, keys));
      const cpu::FlashTile tile{queries, keys};
      const int64_t of_threads =
          plan.threads * std::max(cpu::FlashForwardScratch(nullptr, tile, s.head_dim).bytes,
                                  cpu::FlashBackwardScratch(nullptr, tile, s.tokens).bytes);
      const Tensor workspace = make.poisoned({of_threads / 4});
      const PackedHeads out(make.poisoned(in.q.tensor.shape), s);
      const Result tiled{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), out.q, out.k, out.v};
      cpu::flash_attention_forward(forward(plan, in, tiled, workspace, dropout_of(51)), tile);
      cpu::flash_attention_backward(backward(plan, in, tiled, workspace, dropout_of(51)), tile);
      for (const auto& [got, want] : {std::pair{Heads{tiled.y, 0, 2}, Heads{whole.y, 0, 2}},
                                      {tiled.dq, whole.dq},
                                      {tiled.dk, whole.dk},
                                      {tiled.dv, whole.dv}})
        EXPECT_LT(error_of(values_of(got), doubles_of(values_of(want))), tolerance::kCpuAttention);
    }
}

TEST_F(AttentionDropout, ThreadsDoNotChangeTheBitsAndNothingSavedKnowsOfIt) {
  const AttentionShape s{2, 131, 6, 16, true, 3};
  const Inputs in = packed_inputs(s);
  const int before = omp_get_max_threads();
  for (const AttentionKind kind : kKinds) {
    const Result first = run(dropping_plan_for(kind, s, 1), in, dropout_of(26));
    for (const int threads : {2, 8}) {
      omp_set_num_threads(threads);  // naive asks OpenMP, flash its plan
      expect_same_bits(first, run(dropping_plan_for(kind, s, threads), in, dropout_of(26)));
    }
    omp_set_num_threads(before);
    const Result without = run(plan_for(kind, s), in);
    EXPECT_EQ(std::memcmp(first.saved.data, without.saved.data, first.saved.bytes()), 0) << name_of(kind);
    EXPECT_NE(values_of(first.y), values_of(without.y));
    expect_same_bits(without, run(dropping_plan_for(kind, s), in));  // a plan with, an operation without
  }
}

// One sequence of a tensor [B, T, heads, D], or of some heads of it
Tensor sequence(const Tensor& t, int64_t b) {
  const Shape& s = t.shape;
  return t.view({s[0], t.numel() / s[0]}).rows(b, 1).view({1, s[1], s[2], s[3]});
}
Heads sequence(const Heads& heads, int64_t b) {
  return {sequence(heads.tensor, b), heads.first, heads.count};
}

// Sequences of one batch are sequences of another that begins later.
TEST_F(AttentionDropout, ASplitIntoBatchesKeepsTheBits) {
  const AttentionShape all{4, 40, 2, 8, true, 1}, one{1, 40, 2, 8, true, 1};
  const Inputs in = packed_inputs(all);
  for (const AttentionKind kind : kKinds) {
    const Result whole = run(dropping_plan_for(kind, all), in, dropout_of(51));
    for (int64_t b = 0; b < all.batch; ++b) {
      Dropout dropout = dropout_of(51);
      dropout.first_sequence += static_cast<uint32_t>(b);
      const Result r =
          run(dropping_plan_for(kind, one),
              {sequence(in.q, b), sequence(in.k, b), sequence(in.v, b), sequence(in.dy, b)}, dropout);
      EXPECT_EQ(values_of(r.y), values_of(sequence(whole.y, b))) << name_of(kind) << ", sequence " << b;
      for (const auto& [got, want] : {std::pair{r.dq, whole.dq}, {r.dk, whole.dk}, {r.dv, whole.dv}})
        EXPECT_EQ(values_of(got), values_of(sequence(want, b)));
    }
  }
}

TEST_F(AttentionDropout, GradientsMatchFiniteDifferences) {
  for (const AttentionKind kind : kKinds)
    for (const bool causal : {true, false}) {
      const AttentionShape s{2, 11, 2, 4, causal, 1};
      const Inputs in = packed_inputs(s);
      const AttentionPlan plan = dropping_plan_for(kind, s);
      const Result r = run(plan, in, dropout_of(77));
      const Result scratch{make.poisoned(in.dy.shape), make.poisoned(plan.saved_shape), {}, {}, {}};
      const Tensor workspace = workspace_of(plan);
      expect_gradient(in.q.tensor, r.dq.tensor, [&] {
        cpu.run(forward(plan, in, scratch, workspace, dropout_of(77)));
        return dot(scratch.y, in.dy);
      });
    }
}

TEST_F(AttentionDropout, IsRefusedWhereItCannotBe) {
  const AttentionShape s{1, 8, 2, 16, true};
  const AttentionPlan plan = dropping_plan_for(AttentionKind::kNaive, s);
  const Inputs in = packed_inputs(s);
  const Result r = run(plan, in);
  const Tensor workspace = workspace_of(plan);
  const auto expect_words = [&](const AttentionPlan& with, const Dropout& dropout,
                                std::initializer_list<std::string_view> words) {
    for (const std::string& message :
         {message_of([&] { cpu.run(forward(with, in, r, workspace, dropout)); }),
          message_of([&] { cpu.run(backward(with, in, r, workspace, dropout)); })})
      EXPECT_TRUE(says(message, words));
  };
  expect_words(plan_for(AttentionKind::kNaive, s), dropout_of(26), {"dropout ", "AttentionRequest::dropout"});
  expect_words(plan, dropout_of(256), {"dropout.threshold ", "0 to 255", "found 256"});
  expect_words(plan, dropout_of(-1), {"dropout.threshold ", "0 to 255", "found -1"});
  Dropout last = dropout_of(26);  // head 1 would count as head 0 of the next place
  last.place += 65535;
  expect_words(plan, last, {"dropout.place ", "2 heads", "multiple of 65536", "found 524287 ", "room for 1"});
}

TEST(ChooseAttentionDropout, NaiveNeedsTheSameScratchForwardAsBackward) {
  const AttentionShape s{3, 100, 5, 16, true};
  const AttentionPlan with = plan_for(AttentionKind::kNaive, s, 3, true),
                      without = plan_for(AttentionKind::kNaive, s);
  EXPECT_EQ(without.forward_workspace_bytes, 0);
  EXPECT_EQ(with.forward_workspace_bytes, 5 * 100 * 100 * 4);
  EXPECT_EQ(with.backward_workspace_bytes, without.backward_workspace_bytes);
}

TEST(ChooseAttentionDropout, CudnnRefusesAndSaysWhatToDo) {
  const std::string message = message_of([] {
    choose_attention({.kind = AttentionKind::kCudnn,
                      .shape = {2, 128, 3, 64, true},
                      .dtype = DType::kBF16,
                      .device = {.device = Device::kCuda, .arch = 90, .name = "NVIDIA H200"},
                      .dropout = true});
  });
  EXPECT_NE(message.find("model.attention=flash"), std::string::npos) << message;
  EXPECT_NE(message.find("dropout"), std::string::npos) << message;
}

// The plans of GPUs need no GPU.
TEST(ChooseAttentionDropout, FlashServesEveryHeadDimOnEveryGpu) {
  for (const int arch : {80, 86, 89, 90, 100, 120})
    for (const DType dtype : {DType::kBF16, DType::kF32})
      for (int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
        AttentionRequest request{.kind = AttentionKind::kFlash,
                                 .shape = {2, 128, 3, head_dim, true},
                                 .dtype = dtype,
                                 .device = {.device = Device::kCuda, .arch = arch, .name = "a GPU"}};
        const AttentionPlan without = choose_attention(request);
        request.dropout = true;
        const AttentionPlan with = choose_attention(request);
        EXPECT_TRUE(with.dropout);
        EXPECT_GE(with.backward_workspace_bytes, without.backward_workspace_bytes);
        EXPECT_EQ(with.saved_shape, without.saved_shape);
      }
}

}  // namespace
}  // namespace tessera::testing
