// Embeddings of models whose positions are rotary: tokens alone. Positions that restart with every document.
// On CUDA against the CPU backend.
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

TEST_F(CudaEmbedding, RowsOfTheTokenTableAreScaled) {
  constexpr float kScale = 33.94f;
  for (const DType dtype : kReal)
    for (const bool learned : {false, true}) {
      const Twin tokens = random_indices({3, 65}, 11), table = input(dtype, {11, 104}),
                 positions = input(dtype, {65, 104}), y = output(dtype, {3, 65, 104}),
                 dy = input(dtype, {3, 65, 104}), none;
      run_on_both({y}, [&](auto on) {
        return EmbeddingForward{.tokens = on(tokens),
                                .token_table = on(table),
                                .position_table = on(learned ? positions : none),
                                .y = on(y),
                                .scale = kScale};
      });
      expect_same(y, "y");
      run_on_both({table, positions}, [&](auto on) {
        return EmbeddingBackward{.tokens = on(tokens),
                                 .dy = on(dy),
                                 .d_token_table = on(table),
                                 .d_position_table = on(learned ? positions : none),
                                 .scale = kScale};
      });
      expect_same(table, "d_token_table");
      expect_same(positions, "d_position_table");
    }
}

// Short documents share their first positions thousands of times; of one long document every row has its own.
TEST_F(CudaEmbedding, PositionsRestartWithEveryDocument) {
  struct Case {
    int64_t B, T, C, longest;
  };
  constexpr Case kCases[] = {{3, 5, 48, 2},      {2, 65, 768, 9}, {1, 1000, 64, 1},    {1, 1000, 8, 3},
                             {4, 250, 104, 250}, {1, 1, 8, 1},    {1, 1000, 2056, 40}, {8, 125, 64, 125}};
  for (const DType dtype : kReal)
    for (const Case& c : kCases) {
      SCOPED_TRACE(
          fmt::format("{} B {} T {} C {} documents up to {}", name_of(dtype), c.B, c.T, c.C, c.longest));
      const Twin tokens = random_indices({c.B, c.T}, 11), table = input(dtype, {11, c.C}),
                 positions = input(dtype, {c.T + 3, c.C}), places = random_positions(c.B, c.T, c.longest),
                 y = output(dtype, {c.B, c.T, c.C});
      run_on_both({y}, [&](auto on) {
        return EmbeddingForward{.tokens = on(tokens),
                                .token_table = on(table),
                                .position_table = on(positions),
                                .y = on(y),
                                .positions = on(places)};
      });
      expect_same(y, "y");

      const Twin dy = input(dtype, {c.B, c.T, c.C});
      run_on_both({table, positions}, [&](auto on) {
        return EmbeddingBackward{.tokens = on(tokens),
                                 .dy = on(dy),
                                 .d_token_table = on(table),
                                 .d_position_table = on(positions),
                                 .positions = on(places)};
      });
      expect_same(table, "d_token_table");
      expect_same(positions, "d_position_table");
    }
}

}  // namespace
}  // namespace tessera
