// Losses beside plain cross entropy on CUDA against the CPU: z-loss, label smoothing, a teacher, pairs.
#include "kernels/base/documents.h"
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

class CudaLosses : public CudaTest {
 protected:
  // [33, K + 1]: K logits of a teacher and the log-sum-exp of its V - K others, -inf where there is none; a
  // single logit has a good part of the probability, or losses would be differences of nearly equal numbers
  Twin largest_of_teacher(int64_t K, int64_t V) {
    std::normal_distribution<float> normal(0, 2);
    const float others = K == 1 ? 1 : std::log(static_cast<float>(V - K)) + 2;
    return with_values(DType::kF32, {33, K + 1},
                       [&](int64_t i) { return (i + 1) % (K + 1) == 0 ? others : normal(random_); });
  }
};

TEST_F(CudaLosses, ZLossAndLabelSmoothing) {
  for (const DType dtype : kReal)
    for (const float cap : {0.0f, 3.0f})
      for (const auto& [z, s] : {std::pair(0.01f, 0.0f), {0.0f, 0.2f}, {0.1f, 0.1f}}) {
        SCOPED_TRACE(fmt::format("{}, cap {}, z {}, smoothing {}", name_of(dtype), cap, z, s));
        constexpr int64_t N = 33, V = 1003, kPadded = 1024;
        const Twin logits = input(dtype, {N, kPadded}, 2), losses = output(DType::kF32, {N}),
                   weights = input(DType::kF32, {N}), scale = input(DType::kF32, {1});
        const Twin targets =
            indices({N}, [](int64_t n) { return n % 9 == 4 ? kNoTarget : static_cast<int32_t>(n * 37 % V); });
        const float of_z = z, of_smoothing = s;
        run_on_both({logits, losses}, [&](auto on) {
          return CrossEntropy{.logits = on(logits),
                              .targets = on(targets),
                              .losses = on(losses),
                              .vocab_size = V,
                              .want_gradient = true,
                              .cap = cap,
                              .gradient_scale = on(scale),
                              .weights = on(weights),
                              .z_loss = of_z,
                              .label_smoothing = of_smoothing};
        });
        expect_same_norm(losses, "losses");
        expect_same(logits, "gradient", 2);
      }
}

struct DistillationShares {
  float temperature, cross_entropy, reverse;
};
constexpr DistillationShares kShares[] = {{1, 0, 0}, {2, 0.3f, 0}, {1, 0, 1}, {2, 0.3f, 0.4f}};

TEST_F(CudaLosses, Distillation) {
  for (const DType dtype : kReal)
    for (const auto& [t, c, r] : kShares) {
      SCOPED_TRACE(fmt::format("{}, temperature {}, cross entropy {}, reverse {}", name_of(dtype), t, c, r));
      constexpr int64_t N = 33, V = 1003;
      const Twin logits = input(dtype, {N, 1024}, 2), teacher = input(dtype, {N, 1016}, 2),
                 losses = output(DType::kF32, {N}), weights = input(DType::kF32, {N}),
                 scale = input(DType::kF32, {1});
      const Twin targets =
          indices({N}, [](int64_t n) { return n % 9 == 4 ? kNoTarget : static_cast<int32_t>(n * 37 % V); });
      const float temperature = t, share = c, reverse = r;
      run_on_both({logits, losses}, [&](auto on) {
        return Distillation{.logits = on(logits),
                            .teacher = on(teacher),
                            .targets = on(targets),
                            .losses = on(losses),
                            .vocab_size = V,
                            .want_gradient = true,
                            .temperature = temperature,
                            .cross_entropy = share,
                            .reverse = reverse,
                            .gradient_scale = on(scale),
                            .weights = on(weights)};
      });
      expect_same_norm(losses, "losses");
      expect_same(logits, "gradient", 2);
    }
}

// All, and some of the logits of a teacher: some rows of its ids come again in the order of their columns.
TEST_F(CudaLosses, DistillationFromTheLargestLogits) {
  for (const DType dtype : kReal)
    for (const auto& [t, c, r] : kShares)
      for (const int64_t K : {int64_t{1}, int64_t{64}, int64_t{1003}}) {
        SCOPED_TRACE(fmt::format("{}, {} logits, temperature {}, cross entropy {}, reverse {}",
                                 name_of(dtype), K, t, c, r));
        constexpr int64_t N = 33, V = 1003;
        const Twin logits = input(dtype, {N, 1024}, 2), losses = output(DType::kF32, {N}),
                   weights = input(DType::kF32, {N}), scale = input(DType::kF32, {1}),
                   largest = largest_of_teacher(K, V);
        const Twin targets =
            indices({N}, [](int64_t n) { return n % 9 == 4 ? kNoTarget : static_cast<int32_t>(n * 37 % V); });
        const Twin ids = indices({N, K}, [K](int64_t i) {
          return static_cast<int32_t>(K == V ? i % K : (i / K * 7 + i % K * 13) % V);
        });
        const float temperature = t, share = c, reverse = r;
        run_on_both({logits, losses}, [&](auto on) {
          return Distillation{.logits = on(logits),
                              .targets = on(targets),
                              .losses = on(losses),
                              .vocab_size = V,
                              .want_gradient = true,
                              .temperature = temperature,
                              .cross_entropy = share,
                              .reverse = reverse,
                              .gradient_scale = on(scale),
                              .weights = on(weights),
                              .largest_ids = on(ids),
                              .largest = on(largest)};
        });
        expect_same_norm(losses, "losses");
        if (K > 1)
          expect_same(logits, "gradient", 2);
        else  // an element is a difference of two numbers near to each other
          expect_same_norm(logits, "gradient", 2);
      }
}

TEST_F(CudaLosses, LargestLogits) {
  for (const DType dtype : kReal)
    for (const int64_t K : {int64_t{1}, int64_t{64}, int64_t{700}, int64_t{1003}}) {
      SCOPED_TRACE(fmt::format("{}, {} logits", name_of(dtype), K));
      constexpr int64_t N = 33, V = 1003;
      const Twin logits = input(dtype, {N, 1024}, 2), values = output(DType::kF32, {N, K + 1}),
                 ids = indices({N, K}, [](int64_t) { return -1; });
      run_on_both({values, ids}, [&](auto on) {
        return LargestLogits{
            .logits = on(logits), .ids = on(ids), .values = on(values), .vocab_size = V, .temperature = 1.5f};
      });
      expect_same(values, "values");
      EXPECT_EQ(std::memcmp(bytes_of(ids.cuda).data(), ids.cpu.data, ids.cpu.bytes()), 0);
    }
}

// Pairs of many lengths, with padding behind them
TEST_F(CudaLosses, Pairs) {
  constexpr int64_t B = 3, T = 700, N = B * T;
  std::vector<int32_t> of_documents, of_kinds;
  for (int64_t b = 0; b < B; ++b) {
    int32_t begin = 0;
    for (int32_t i = 1; begin < T; ++i) {
      const int32_t length = std::min<int32_t>(i * i * 7 % 190 + 1, static_cast<int32_t>(T) - begin);
      const bool last = begin + length == T || (i % 2 == 1 && begin + length + 191 > T);
      const int32_t end = last ? static_cast<int32_t>(T) : begin + length;
      const auto kind = last && i % 2 == 1 ? DocumentKind::kPlain
                        : i % 2 == 1       ? DocumentKind::kChosen
                                           : DocumentKind::kRejected;
      for (int32_t t = begin; t < end; ++t) {
        of_documents.insert(of_documents.end(), {begin, end});
        of_kinds.push_back(static_cast<int32_t>(kind));
      }
      begin = end;
    }
  }
  const Twin documents = indices({B, T, 2}, [&](int64_t i) { return of_documents[static_cast<size_t>(i)]; }),
             kinds = indices({B, T}, [&](int64_t i) { return of_kinds[static_cast<size_t>(i)]; }),
             labels = indices({B, T},
                              [&](int64_t i) {
                                const int32_t kind = of_kinds[static_cast<size_t>(i)],
                                              begin = of_documents[static_cast<size_t>(2 * i)];
                                return kind == 0   ? 0
                                       : kind == 2 ? static_cast<int32_t>(DocumentKind::kMismatched)
                                       : begin % 2 ? static_cast<int32_t>(DocumentKind::kUndesirable)
                                                   : static_cast<int32_t>(DocumentKind::kDesirable);
                              }),
             targets = indices({N}, [](int64_t n) { return n % 5 < 2 ? kNoTarget : 1; }),
             losses = input(DType::kF32, {N}, 0.5f, 2), reference = input(DType::kF32, {N}, 0.5f, 2),
             stored = input(DType::kF32, {N, 2}, 2), divergence = input(DType::kF32, {1}, 1, 2),
             scale = input(DType::kF32, {1}, 0.5f, 1), pair_weights = input(DType::kF32, {N}),
             weights = output(DType::kF32, {N}),
             figures = output(DType::kF32, {PreferenceFigures::kCount, N});
  for (const PreferenceKind kind : {PreferenceKind::kDpo, PreferenceKind::kIpo, PreferenceKind::kSimpo,
                                    PreferenceKind::kOrpo, PreferenceKind::kKto})
    for (const bool is_stored : {false, true}) {
      const PreferenceRule rule{.kind = kind, .beta = 0.1, .cross_entropy = 0.1};
      const bool needs = rule.needs_reference(), has_labels = rule.has_labels();
      run_on_both({weights, figures}, [&](auto on) {
        return PreferenceLoss{.documents = on(documents),
                              .kinds = has_labels ? on(labels) : on(kinds),
                              .targets = on(targets),
                              .losses = on(losses),
                              .reference = needs && !is_stored ? on(reference) : Tensor{},
                              .stored = needs && is_stored ? on(stored) : Tensor{},
                              .rule = rule,
                              .divergence = has_labels ? on(divergence) : Tensor{},
                              .gradient_scale = has_labels ? on(scale) : Tensor{},
                              .pair_weights = is_stored ? on(pair_weights) : Tensor{},
                              .weights = on(weights),
                              .figures = on(figures)};
      });
      expect_same(weights, "weights");
      expect_same(figures, "figures");
    }
}

}  // namespace
}  // namespace tessera
