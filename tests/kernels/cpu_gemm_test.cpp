// Products on the CPU, of matrices and transposed ones, in rows longer than the matrix: against fp64, with
// the same bits on any number of threads.
#include <omp.h>

#include "kernels/cpu/gemm.h"
#include "tests/kernels/formula.h"

namespace tessera::testing {
namespace {

struct CpuGemm : ::testing::Test {
  ~CpuGemm() override { omp_set_num_threads(threads_before); }

  HostTensors make;
  const int threads_before = omp_get_max_threads();
};

// A matrix of rows x columns, or its transpose, in rows that are 3 longer
struct Operand {
  int64_t rows, columns;
  bool transposed;
  Tensor memory;

  Operand(HostTensors& make, int64_t r, int64_t c, bool t)
      : rows(r), columns(c), transposed(t), memory(make.normal({t ? c : r, (t ? r : c) + 3})) {}
  int64_t row() const { return memory.shape[1]; }
  double at(int64_t i, int64_t j) const { return floats(memory)[transposed ? j * row() + i : i * row() + j]; }
  cpu::Matrix matrix() const { return {memory.as<float>(), row(), transposed}; }
};

TEST_F(CpuGemm, IsTheFormulaWithTheSameBitsOnAnyNumberOfThreads) {
  struct Shape {
    int64_t rows, columns, terms;
  };
  constexpr float kScale = 0.5f;
  for (const auto& [M, N, K] : {Shape{1, 1, 1}, {3, 130, 5}, {131, 7, 33}, {150, 170, 67}, {517, 301, 9}})
    for (const bool a_transposed : {false, true})
      for (const bool b_transposed : {false, true})
        for (const float keep : {0.0f, 1.0f}) {
          SCOPED_TRACE(
              fmt::format("{} x {} x {}, {} {}, keep {}", M, N, K, a_transposed, b_transposed, keep));
          const Operand a(make, M, K, a_transposed), b(make, K, N, b_transposed);
          const Tensor before = keep == 0 ? make.poisoned({M, N + 5}) : make.normal({M, N + 5});
          const auto product_on = [&](int threads) {
            omp_set_num_threads(threads);
            const Tensor result = make.copy_of(before);
            cpu::multiply({.rows = M,
                           .columns = N,
                           .terms = K,
                           .scale = kScale,
                           .a = a.matrix(),
                           .b = b.matrix(),
                           .keep = keep,
                           .result = result.as<float>(),
                           .row = N + 5});
            return result;
          };
          const Tensor result = product_on(1), inside = make.poisoned({M, N});
          Doubles want(static_cast<size_t>(M * N));
          for (int64_t i = 0; i < M; ++i)
            for (int64_t j = 0; j < N; ++j) {
              double& sum = want[static_cast<size_t>(i * N + j)];
              for (int64_t k = 0; k < K; ++k) sum += a.at(i, k) * b.at(k, j);
              sum = kScale * sum + (keep == 0 ? 0 : floats(before)[i * (N + 5) + j]);
              floats(inside)[i * N + j] = floats(result)[i * (N + 5) + j];
            }
          expect_formula(inside, want, "product");
          for (int64_t i = 0; i < M; ++i)
            EXPECT_EQ(std::memcmp(&floats(result)[i * (N + 5) + N], &floats(before)[i * (N + 5) + N], 20), 0);
          for (const int threads : {2, 3, 7}) expect_same_bits(product_on(threads), result, "threads");
        }
}

}  // namespace
}  // namespace tessera::testing
