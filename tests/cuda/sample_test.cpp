// What an observer sees of attention and of the MLP, on CUDA against the CPU.
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

using CudaOps = CudaTest;

AttentionPlan plan_of(const AttentionShape& shape, DType dtype, const DeviceTraits& device) {
  return choose_attention({.kind = AttentionKind::kNaive, .shape = shape, .dtype = dtype, .device = device});
}

TEST_F(CudaOps, AttentionSample) {
  AttentionMask window(true), offset(true);
  window.window = 50, offset.offset = -20;
  for (const DType dtype : kReal)
    for (const AttentionMask& mask :
         {AttentionMask(false), AttentionMask(true), AttentionMask(true, true), window, offset})
      for (const AttentionShape& s :
           {AttentionShape{3, 33, 4, 64, mask, 2}, AttentionShape{2, 300, 2, 128, mask, 2},
            AttentionShape{9, 70, 2, 8, mask, 1}, AttentionShape{1, 5, 3, 24, mask, 3}}) {
        SCOPED_TRACE(fmt::format("{} {} B {} T {} H {} K {} D {}", name_of(dtype), to_string(mask), s.batch,
                                 s.tokens, s.heads, s.kv_heads, s.head_dim));
        const Twin q = input(dtype, {s.batch, s.tokens, s.heads, s.head_dim}),
                   k = input(dtype, {s.batch, s.tokens, s.kv_heads, s.head_dim}),
                   found = output(DType::kF32, {s.heads});
        const Twin documents = indices({s.batch, s.tokens, 2}, [&](int64_t i) {  // of up to 41 tokens
          const int64_t begin = i / 2 % s.tokens / 41 * 41;
          return static_cast<int32_t>(i % 2 == 0 ? begin : std::min(s.tokens, begin + 41));
        });
        const AttentionPlan on_cpu = plan_of(s, DType::kF32, {.device = Device::kCpu}),
                            on_cuda = plan_of(s, dtype, traits());
        run_on_both({found}, [&](const auto& on) {
          return AttentionSample{.plan = on(on_cpu, on_cuda),
                                 .q = all_heads(on(q)),
                                 .k = all_heads(on(k)),
                                 .tables = {.documents = mask.documents ? on(documents) : Tensor{}},
                                 .entropy = on(found)};
        });
        expect_same(found, "entropy");
      }
}

TEST_F(CudaOps, AttentionSampleOfPackedHeads) {
  const AttentionShape s{2, 100, 4, 32, AttentionMask(true), 2};
  for (const DType dtype : kReal) {
    const Twin qkv = input(dtype, {s.batch, s.tokens, 8, s.head_dim}), found = output(DType::kF32, {4});
    const AttentionPlan on_cpu = plan_of(s, DType::kF32, {.device = Device::kCpu}),
                        on_cuda = plan_of(s, dtype, traits());
    run_on_both({found}, [&](const auto& on) {
      const PackedHeads heads(on(qkv), s);
      return AttentionSample{
          .plan = on(on_cpu, on_cuda), .q = heads.q, .k = heads.k, .entropy = on(found)};
    });
    expect_same(found, "entropy");
  }
}

TEST_F(CudaOps, DeadUnits) {
  for (const DType dtype : kReal)
    for (const auto& [N, F] : {std::pair<int64_t, int64_t>{1, 8}, {1000, 136}, {77, 4096}, {3, 13}}) {
      SCOPED_TRACE(fmt::format("{} {} x {}", name_of(dtype), N, F));
      const Twin x = with_values(dtype, {N, F}, [F = F](int64_t i) {
        const int64_t unit = i % F;
        return unit % 3 == 0 ? 0 : (unit % 2 ? 1e-6f : -0.5f) * static_cast<float>(1 + i / F % 7);
      });
      const Twin maxima = with_values(DType::kF32, {F}, [](int64_t) { return 0.0f; }),
                 dead = output(DType::kF32, {1});
      run_on_both({maxima, dead}, [&](const auto& on) {
        return DeadUnits{.x = on(x), .maxima = on(maxima), .dead = on(dead)};
      });
      EXPECT_EQ(floats_of(dead.cuda)[0], dead.cpu.as<float>()[0]);
      EXPECT_EQ(floats_of(maxima.cuda),
                std::vector<float>(maxima.cpu.as<float>(), maxima.cpu.as<float>() + F));
      // A second part of the rows is added to what is there.
      const Twin ones = with_values(dtype, {N, F}, [](int64_t) { return 1.0f; });
      cuda().run(DeadUnits{.x = ones.cuda, .maxima = maxima.cuda, .dead = dead.cuda});
      EXPECT_EQ(floats_of(dead.cuda)[0], 0);
    }
}

}  // namespace
}  // namespace tessera
