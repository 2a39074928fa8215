// Embeddings of models whose positions are rotary: tokens alone.
#include "tests/kernels/formula.h"

namespace tessera::testing {
namespace {

TEST(Embedding, WithoutPositionsCopiesRowsAndAddsThemBack) {
  HostTensors make;
  CpuStream cpu;
  const int64_t B = 3, T = 7, C = 70, V = 4;  // few tokens, so that rows share them
  const Tensor tokens = make.tokens({B, T}, V), table = make.normal({V, C}), y = make.poisoned({B, T, C});
  cpu.run(EmbeddingForward{.tokens = tokens, .token_table = table, .y = y});
  const Tensor dy = make.normal({B, T, C}), d_table = make.normal({V, C});
  Doubles want = doubles(d_table);
  for (int64_t n = 0; n < B * T; ++n) {
    const int64_t token = tokens.as<int32_t>()[n];
    for (int64_t c = 0; c < C; ++c) {
      EXPECT_EQ(y.as<float>()[n * C + c], table.as<float>()[token * C + c]);
      want[static_cast<size_t>(token * C + c)] += static_cast<double>(dy.as<float>()[n * C + c]);
    }
  }
  cpu.run(EmbeddingBackward{.tokens = tokens, .dy = dy, .d_token_table = d_table});
  expect_formula(d_table, want, "d_token_table");
}

}  // namespace
}  // namespace tessera::testing
