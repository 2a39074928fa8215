// Embeddings of models whose positions are rotary: tokens alone, on CUDA against the CPU backend.
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

using CudaEmbedding = CudaTest;

TEST_F(CudaEmbedding, WithoutPositionsIsThatOfTheCpu) {
  struct Case {
    int64_t B, T, C, V;
  };
  constexpr Case kCases[] = {{3, 5, 48, 2}, {2, 65, 768, 50257}, {1, 1000, 64, 11}, {1, 1, 8, 3}};
  for (const DType dtype : kReal)
    for (const Case& c : kCases) {
      SCOPED_TRACE(fmt::format("{} B {} T {} C {} V {}", name_of(dtype), c.B, c.T, c.C, c.V));
      const Twin tokens = random_indices({c.B, c.T}, c.V), table = input(dtype, {c.V, c.C}),
                 y = output(dtype, {c.B, c.T, c.C});
      run_on_both({y}, [&](auto on) {
        return EmbeddingForward{.tokens = on(tokens), .token_table = on(table), .y = on(y)};
      });
      const std::vector<float> got = floats_of(y.cuda);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], y.cpu.as<float>()[i]) << i;

      const Twin dy = input(dtype, {c.B, c.T, c.C});
      run_on_both({table}, [&](auto on) {
        return EmbeddingBackward{.tokens = on(tokens), .dy = on(dy), .d_token_table = on(table)};
      });
      expect_same(table, "d_token_table");
    }
}

}  // namespace
}  // namespace tessera
