// Embeddings of models whose positions are rotary: tokens alone. Positions that restart with every document.
#include "tests/documents.h"
#include "tests/kernels/formula.h"
#include "tests/says.h"

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

TEST(Embedding, RowsOfTheTokenTableAreScaled) {
  HostTensors make;
  CpuStream cpu;
  const int64_t B = 2, T = 5, C = 13, V = 3;
  constexpr float kScale = 3.6f;
  const Tensor tokens = make.tokens({B, T}, V), table = make.normal({V, C}), positions = make.normal({T, C}),
               dy = make.normal({B, T, C});
  for (const bool learned : {false, true}) {
    const Tensor y = make.poisoned({B, T, C}), d_table = make.zeros({V, C}), d_positions = make.zeros({T, C});
    cpu.run(EmbeddingForward{.tokens = tokens,
                             .token_table = table,
                             .position_table = learned ? positions : Tensor{},
                             .y = y,
                             .scale = kScale});
    cpu.run(EmbeddingBackward{.tokens = tokens,
                              .dy = dy,
                              .d_token_table = d_table,
                              .d_position_table = learned ? d_positions : Tensor{},
                              .scale = kScale});
    Doubles want_y, want(static_cast<size_t>(V * C)), want_positions(static_cast<size_t>(T * C));
    for (int64_t n = 0; n < B * T; ++n)
      for (int64_t c = 0; c < C; ++c) {
        const int64_t row = tokens.as<int32_t>()[n] * C + c, place = n % T * C + c;
        const double d = dy.as<float>()[n * C + c];
        want_y.push_back(static_cast<double>(kScale) * table.as<float>()[row] +
                         (learned ? positions.as<float>()[place] : 0));
        want[static_cast<size_t>(row)] += static_cast<double>(kScale) * d;
        want_positions[static_cast<size_t>(place)] += learned ? d : 0;
      }
    expect_formula(y, want_y, "y");
    expect_formula(d_table, want, "d_token_table");
    expect_formula(d_positions, want_positions, "d_position_table");
  }
}

TEST(Embedding, PositionsAreThoseGiven) {
  HostTensors make;
  CpuStream cpu;
  const int64_t B = 3, T = 11, C = 70, V = 4;
  const std::vector<std::vector<int64_t>> lengths{{11}, {1, 4, 1, 5}, {3, 3, 3, 2}};
  const Tensor tokens = make.tokens({B, T}, V), table = make.normal({V, C}),
               positions = make.normal({T + 2, C}), y = make.poisoned({B, T, C}), dy = make.normal({B, T, C}),
               d_table = make.normal({V, C}), d_positions = make.normal({T + 2, C}),
               places = positions_tensor(make, lengths);
  Doubles want = doubles(d_positions);
  cpu.run(EmbeddingForward{
      .tokens = tokens, .token_table = table, .position_table = positions, .y = y, .positions = places});
  int64_t n = 0;
  for (const std::vector<int64_t>& sequence : lengths)
    for (const int64_t length : sequence)
      for (int64_t position = 0; position < length; ++position, ++n)
        for (int64_t c = 0; c < C; ++c) {
          EXPECT_EQ(floats(y)[n * C + c],
                    floats(table)[tokens.as<int32_t>()[n] * C + c] + floats(positions)[position * C + c]);
          want[static_cast<size_t>(position * C + c)] += static_cast<double>(floats(dy)[n * C + c]);
        }
  ASSERT_EQ(n, B * T);
  cpu.run(EmbeddingBackward{.tokens = tokens,
                            .dy = dy,
                            .d_token_table = d_table,
                            .d_position_table = d_positions,
                            .positions = places});
  expect_formula(d_positions, want, "d_position_table");
}

// Positions of a sequence that is one document change no bit.
TEST(Embedding, PlainPositionsChangeNoBit) {
  HostTensors make;
  CpuStream cpu;
  const Tensor tokens = make.tokens({2, 9}, 5), table = make.normal({5, 12}),
               positions = make.normal({9, 12}), dy = make.normal({2, 9, 12}),
               places = positions_tensor(make, {{9}, {9}}), start = make.normal({9, 12});
  Tensor y[2], d_positions[2];
  for (const int with : {0, 1}) {
    y[with] = make.poisoned({2, 9, 12}), d_positions[with] = make.copy_of(start);
    const Tensor given = with ? places : Tensor{};
    cpu.run(EmbeddingForward{.tokens = tokens,
                             .token_table = table,
                             .position_table = positions,
                             .y = y[with],
                             .positions = given});
    cpu.run(EmbeddingBackward{.tokens = tokens,
                              .dy = dy,
                              .d_token_table = make.zeros({5, 12}),
                              .d_position_table = d_positions[with],
                              .positions = given});
  }
  expect_same_bits(y[0], y[1], "y");
  expect_same_bits(d_positions[0], d_positions[1], "d_position_table");
}

TEST(Embedding, RefusesPositionsThatDoNotFit) {
  HostTensors make;
  CpuStream cpu;
  const Tensor tokens = make.tokens({1, 4}, 5), table = make.normal({5, 8}), y = make.zeros({1, 4, 8});
  const auto refusal = [&](const Tensor& positions) {
    return refusal_of(
        cpu, EmbeddingForward{.tokens = tokens, .token_table = table, .y = y, .positions = positions});
  };
  EXPECT_TRUE(says(refusal(make.tokens({1, 3}, 1)),
                   {"embedding forward: positions ", "int32 [1, 4] on cpu", "found int32 [1, 3]"}));
  const Tensor below = positions_tensor(make, {{2, 2}});
  below.as<int32_t>()[1] = -3;
  EXPECT_TRUE(says(refusal(below), {"embedding forward: ", "row 1", "position -3, expected 0 or more"}));
}

}  // namespace
}  // namespace tessera::testing
