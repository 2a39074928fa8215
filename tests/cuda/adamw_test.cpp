// AdamW on CUDA against the CPU backend.
#include <cmath>
#include <limits>

#include "tests/cuda/twin.h"
#include "tests/masters.h"

namespace tessera {
namespace {

using CudaOps = CudaTest;

// A clipped step with decay, to be changed where a test wants another.
AdamW step_of(std::vector<AdamW::Part> parts, const Tensor& norm) {
  return {.parts = std::move(parts),
          .grad_norm = norm,
          .max_norm = 1,
          .learning_rate = 1e-2,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .step = 3};
}

// A weight is the nearest bf16 number to its master.
void expect_rounded(const std::vector<float>& weights, const std::vector<float>& masters) {
  for (size_t i = 0; i < masters.size(); ++i) ASSERT_EQ(weights[i], testing::nearest_bf16(masters[i])) << i;
}

TEST_F(CudaOps, AdamW) {
  for (const DType dtype : kReal) {
    for (const int64_t count : {1, 5, 64, 1000, 4099}) {
      SCOPED_TRACE(fmt::format("{} count {}", name_of(dtype), count));
      const bool bf16 = dtype == DType::kBF16;
      // The CPU's parameter is fp32: it corresponds to the master.
      const Twin master = input(DType::kF32, {count}), param = output(dtype, {count}),
                 low = output(DType::kU16, {count});
      if (bf16) cuda().run(SplitMasters{.masters = master.cuda, .weights = param.cuda, .low = low.cuda});
      const Twin m = input(DType::kF32, {count}, 0.1f);
      const Twin v =
          with_values(DType::kF32, {count}, [&](int64_t i) { return 0.01f * static_cast<float>(i % 7); });
      const Twin grad = input(dtype, {count});
      for (const float norm_value : {0.5f, 20.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
        SCOPED_TRACE(norm_value);
        const Twin norm = with_values(DType::kF32, {1}, [&](int64_t) { return norm_value; });
        const auto args = [&](const Tensor& p, const Tensor& bits, const Tensor& g, const Tensor& first,
                              const Tensor& second, const Tensor& n) {
          return step_of(
              {{.param = p, .low = bits, .grad = g, .m = first, .v = second, .decayed = p.numel()}}, n);
        };
        cpu().run(args(master.cpu, {}, grad.cpu, m.cpu, v.cpu, norm.cpu));
        const Tensor updated = bf16 ? param.cuda : master.cuda, bits = bf16 ? low.cuda : Tensor{};
        const std::vector<char> before = bytes_of(updated), low_before = bytes_of(low.cuda);
        run_twice({param, low, master, m, v},
                  [&] { cuda().run(args(updated, bits, grad.cuda, m.cuda, v.cuda, norm.cuda)); });
        if (bf16) cuda().run(JoinMasters{.weights = param.cuda, .low = low.cuda, .masters = master.cuda});
        expect_same(master, "master");
        expect_same(m, "m");
        expect_same(v, "v");
        if (!std::isfinite(norm_value)) {
          EXPECT_EQ(before, bytes_of(updated)) << "changed by a step that must be refused";
          EXPECT_EQ(low_before, bytes_of(low.cuda)) << "changed by a step that must be refused";
        } else if (bf16) {
          expect_rounded(floats_of(param.cuda), floats_of(master.cuda));
        }
      }
    }
  }
}

// Sums of small whole numbers and powers of two: exact in fp32 in any order, and finer than bf16. So the
// moments must have the CPU's bits, rounded at random or not.
TEST_F(CudaOps, AdamWMomentsHaveTheCpusBits) {
  Arena host = Arena::host();
  for (const DType dtype : kReal)
    for (const DType grad_dtype : kReal)
      for (const DType moments : kReal)
        for (const int64_t count : {1, 5, 64, 1000, 4099}) {
          if (dtype == DType::kF32 && grad_dtype != dtype) continue;
          SCOPED_TRACE(fmt::format("{} gradient {} moments {} count {}", name_of(dtype), name_of(grad_dtype),
                                   name_of(moments), count));
          const bool has_master = dtype == DType::kBF16;
          const Twin p = input(DType::kF32, {count}), param = output(dtype, {count}),
                     low = output(DType::kU16, {count});
          const auto whole = [&](DType as, int64_t prime, float unit) {
            return with_values(as, {count},
                               [=](int64_t i) { return static_cast<float>(i * prime % 128) * unit; });
          };
          const Twin grad = whole(grad_dtype, 37, 0x1p-7f), m = whole(moments, 53, 1),
                     v = whole(moments, 91, 1);
          const Twin norms = with_values(DType::kF32, {3}, [](int64_t i) { return static_cast<float>(i); });
          const auto step = [&](const Tensor& master, const Tensor& g, const Tensor& first,
                                const Tensor& second, const Tensor& parts) {
            AdamW a = step_of({{.param = master,
                                .low = {},
                                .grad = g,
                                .m = first,
                                .v = second,
                                .decayed = master.numel(),
                                .random_key = 0x123456789abcdef0,
                                .first_element = 4096}},
                              parts);
            a.max_norm = 0, a.beta1 = a.beta2 = 0.5;
            return a;
          };
          const Tensor cpu_m = host.alloc(MemoryTag::kData, "m", moments, {count}),
                       cpu_v = host.alloc(MemoryTag::kData, "v", moments, {count});
          cpu().run(Copy{m.cpu, cpu_m}), cpu().run(Copy{v.cpu, cpu_v});
          cpu().run(step(p.cpu, grad.cpu, cpu_m, cpu_v, norms.cpu));
          const int64_t half = count / 2 / 8 * 8;
          const std::vector<std::pair<int64_t, int64_t>> one = {{0, count}},
                                                         two = {{0, half}, {half, count - half}};
          for (const auto& slices : {one, two}) {
            const Twin q = output(DType::kF32, {count}), q_m = output(moments, {count}),
                       q_v = output(moments, {count});
            cuda().run(Copy{p.cuda, q.cuda}), cuda().run(Copy{m.cuda, q_m.cuda}),
                cuda().run(Copy{v.cuda, q_v.cuda});
            if (has_master)
              cuda().run(SplitMasters{.masters = q.cuda, .weights = param.cuda, .low = low.cuda});
            run_twice({param, low, q, q_m, q_v}, [&] {
              for (const auto& [first, rows] : slices) {
                if (rows == 0) continue;
                AdamW a = step(q.cuda.rows(first, rows), grad.cuda.rows(first, rows),
                               q_m.cuda.rows(first, rows), q_v.cuda.rows(first, rows), norms.cuda);
                AdamW::Part& part = a.parts[0];
                part.first_element += first;
                if (has_master)
                  part.param = param.cuda.rows(first, rows), part.low = low.cuda.rows(first, rows);
                cuda().run(a);
              }
            });
            if (has_master)
              cuda().run(JoinMasters{.weights = param.cuda, .low = low.cuda, .masters = q.cuda});
            const auto bits = [](const Tensor& t) {
              return std::vector<char>(t.as<char>(), t.as<char>() + t.bytes());
            };
            EXPECT_EQ(bytes_of(q_m.cuda), bits(cpu_m));
            EXPECT_EQ(bytes_of(q_v.cuda), bits(cpu_v));
            expect_same({p.cpu, q.cuda}, "master");
            if (has_master) expect_rounded(floats_of(param.cuda), floats_of(q.cuda));
          }
        }
}

// Over many steps masters have the bits of fp32 parameters that get the same gradients: none is lost between
// a weight and its lower bits, though a tie comes about once in 65,536 updates.
TEST_F(CudaOps, AdamWMastersAreThoseOfFp32) {
  constexpr int64_t kCount = 20'003;
  constexpr int kUpdates = 64;
  for (const DType moments : kReal) {
    const Twin p = input(DType::kF32, {kCount}, 0.02f), weights = output(DType::kBF16, {kCount}),
               low = output(DType::kU16, {kCount}), joined = output(DType::kF32, {kCount});
    cuda().run(SplitMasters{.masters = p.cuda, .weights = weights.cuda, .low = low.cuda});
    std::vector<Twin> states;  // m and v of each
    for (int i = 0; i < 4; ++i) {
      states.push_back(output(moments, {kCount}));
      cuda().run(FillZero{states.back().cuda});
    }
    const Twin norm = with_values(DType::kF32, {1}, [](int64_t) { return 0.5f; });
    int64_t ties = 0;
    for (int step = 1; step <= kUpdates; ++step) {
      const Twin grad = input(DType::kF32, {kCount}, 0.1f);
      AdamW a = step_of({{.param = p.cuda,
                          .low = {},
                          .grad = grad.cuda,
                          .m = states[0].cuda,
                          .v = states[1].cuda,
                          .decayed = 8'000,
                          .random_key = 9}},
                        norm.cuda);
      a.step = step, a.learning_rate = 1e-3;
      AdamW b = a;
      b.parts[0].param = weights.cuda, b.parts[0].low = low.cuda;
      b.parts[0].m = states[2].cuda, b.parts[0].v = states[3].cuda;
      cuda().run(a), cuda().run(b);
      cuda().run(JoinMasters{.weights = weights.cuda, .low = low.cuda, .masters = joined.cuda});
      ASSERT_EQ(bytes_of(joined.cuda), bytes_of(p.cuda)) << "step " << step;
      const std::vector<float> masters = floats_of(p.cuda);
      expect_rounded(floats_of(weights.cuda), masters);
      for (const float master : masters) ties += (std::bit_cast<uint32_t>(master) & 0xffff) == 0x8000;
    }
    EXPECT_GT(ties, 0) << "of 1.3 million updates: nothing was tested there";
  }
}

// More parts than a launch takes, of which some decay in front, have the bits of each alone.
TEST_F(CudaOps, AdamWOfManyParts) {
  for (const DType moments : kReal) {
    const Twin norm = with_values(DType::kF32, {1}, [](int64_t) { return 2.0f; });
    AdamW all = step_of({}, norm.cuda);
    AdamW alone = all;  // a part for the elements that decay, and one for the others
    std::vector<std::pair<Tensor, Tensor>> results;
    for (const int64_t count : {4099, 1, 2048, 5, 64, 2047, 100'003, 8})
      for (int copy = 0; copy < 13; ++copy) {
        const int64_t decayed = count / 3 / 8 * 8;
        const Twin grad = input(DType::kBF16, {count}), master = input(DType::kF32, {count}),
                   weights = output(DType::kBF16, {count}), low = output(DType::kU16, {count}),
                   m = input(moments, {count}, 0.1f), v = with_values(moments, {count}, [&](int64_t i) {
                                                        return 0.01f * static_cast<float>(i % 7);
                                                      });
        cuda().run(SplitMasters{.masters = master.cuda, .weights = weights.cuda, .low = low.cuda});
        AdamW::Part part{.param = weights.cuda,
                         .low = low.cuda,
                         .grad = grad.cuda,
                         .m = m.cuda,
                         .v = v.cuda,
                         .decayed = decayed,
                         .random_key = static_cast<uint64_t>(copy),
                         .first_element = 8 * copy};
        all.parts.push_back(part);
        const auto other = [&](Tensor& tensor) {
          const Tensor copied = output(tensor.dtype, {count}).cuda;
          cuda().run(Copy{tensor, copied});
          results.push_back({tensor, copied});
          tensor = copied;
        };
        other(part.param), other(part.low), other(part.m), other(part.v);
        const auto rows = [&](int64_t first, int64_t end) {
          if (first == end) return;
          AdamW::Part some = part;
          for (Tensor* tensor : {&some.param, &some.low, &some.grad, &some.m, &some.v})
            *tensor = tensor->rows(first, end - first);
          some.decayed = first == 0 ? end : 0;
          some.first_element += first;
          alone.parts = {some};
          cuda().run(alone);
        };
        if (decayed > 0) rows(0, decayed);
        part.decayed = 0;
        if (decayed == 0) alone.parts = {part}, cuda().run(alone);
        if (decayed > 0) rows(decayed, count);
      }
    cuda().run(all);
    for (const auto& [together, one] : results) EXPECT_EQ(bytes_of(together), bytes_of(one));
  }
}

TEST_F(CudaOps, AdamWTakesTheNormInParts) {
  const int64_t count = 1000;
  const Twin start = input(DType::kF32, {count}), grad = input(DType::kF32, {count});
  const auto stepped = [&](std::vector<float> norms) {
    const Twin p = output(DType::kF32, {count}), m = output(DType::kF32, {count}),
               v = output(DType::kF32, {count});
    const Twin parts =
        with_values(DType::kF32, {static_cast<int64_t>(norms.size())}, [&](int64_t i) { return norms[i]; });
    cuda().run(Copy{start.cuda, p.cuda}), cuda().run(FillZero{m.cuda}), cuda().run(FillZero{v.cuda});
    cuda().run(step_of({{.param = p.cuda,
                         .low = {},
                         .grad = grad.cuda,
                         .m = m.cuda,
                         .v = v.cuda,
                         .decayed = p.cuda.numel()}},
                       parts.cuda));
    return bytes_of(m.cuda);  // the clipped gradient, which p, divided by its size, would not show
  };
  EXPECT_EQ(stepped({3, 4}), stepped({5}));
  EXPECT_EQ(stepped({2e30f, 0}), stepped({2e30f})) << "its square is beyond fp32";
  EXPECT_NE(stepped({3, 4}), stepped({4}));
  EXPECT_EQ(stepped({1, std::numeric_limits<float>::infinity()}), stepped({std::nanf("")}));
}

// More ranges than one launch takes, and ranges of more blocks than one has partial sums for in a wave
TEST_F(CudaOps, AdamWNorms) {
  for (const DType dtype : kReal)
    for (const DType grad_dtype : kReal)
      for (const DType moments : kReal) {
        if (dtype == DType::kF32 && grad_dtype != dtype) continue;
        SCOPED_TRACE(
            fmt::format("{} gradient {} moments {}", name_of(dtype), name_of(grad_dtype), name_of(moments)));
        const int64_t count = 30'003;
        const Twin p = input(DType::kF32, {count}), weights = output(dtype, {count}),
                   low = output(DType::kU16, {count}), grad = input(grad_dtype, {count}, 0.1f),
                   m = input(moments, {count}, 0.1f),
                   norm = with_values(DType::kF32, {1}, [](int64_t) { return 20.0f; });
        const Twin v =
            with_values(moments, {count}, [](int64_t i) { return 0.01f * static_cast<float>(1 + i % 7); });
        const bool halves = dtype == DType::kBF16;
        if (halves) cuda().run(SplitMasters{.masters = p.cuda, .weights = weights.cuda, .low = low.cuda});
        std::vector<AdamWNorms::Range> ranges{{.part = 0, .first = 0, .count = count},
                                              {.part = 0, .first = 1600, .count = 20'001}};
        for (int64_t i = 0; i < 100; ++i) ranges.push_back({.part = 0, .first = 8 * i, .count = i % 5});
        const Twin sums = output(DType::kF32, {std::ssize(ranges), 3});
        const AdamW on_cpu = step_of(
            {{.param = p.cpu, .low = {}, .grad = grad.cpu, .m = m.cpu, .v = v.cpu, .decayed = 16'000}},
            norm.cpu);
        const AdamW on_cuda = step_of({{.param = halves ? weights.cuda : p.cuda,
                                        .low = halves ? low.cuda : Tensor{},
                                        .grad = grad.cuda,
                                        .m = m.cuda,
                                        .v = v.cuda,
                                        .decayed = 16'000}},
                                      norm.cuda);
        cpu().run(AdamWNorms{.step = on_cpu, .ranges = ranges, .sums = sums.cpu});
        const std::vector<char> before = bytes_of(on_cuda.parts[0].param);
        run_twice({sums},
                  [&] { cuda().run(AdamWNorms{.step = on_cuda, .ranges = ranges, .sums = sums.cuda}); });
        expect_same(sums, "sums");
        EXPECT_EQ(bytes_of(on_cuda.parts[0].param), before);
        const Twin verdict = with_values(DType::kF32, {1}, [](int64_t) { return 0.0f; });
        AdamW refused = on_cuda;
        refused.verdict = verdict.cuda;
        cuda().run(AdamWNorms{.step = refused, .ranges = ranges, .sums = sums.cuda});
        for (const float sum : floats_of(sums.cuda)) ASSERT_EQ(sum, 0);
      }
}

}  // namespace
}  // namespace tessera
