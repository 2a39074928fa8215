// A mixture of experts on CUDA against the CPU backend: choices and their rows are equal, and the products
// hold for experts with no row, one, and all.
#include "kernels/expert_ops.h"
#include "tests/cuda/fp8_twins.h"

namespace tessera {
namespace {

struct Case {
  int64_t N, E, k, C, F;
  RouterRule rule = {};
  bool to_one = false;  // all tokens choose the same experts
  int64_t R() const { return N * k; }
};
std::string text_of(const Case& c, DType dtype) {
  return fmt::format("{} N {} E {} k {} C {} F {}{}", name_of(dtype), c.N, c.E, c.k, c.C, c.F,
                     c.to_one ? ", all tokens to one" : "");
}
const Case kCases[] = {{1, 1, 1, 8, 8},
                       {7, 5, 2, 64, 24, {.renormalise = true}},
                       {130, 4, 4, 72, 136},
                       {333, 128, 8, 128, 64, {.renormalise = true}},
                       {200, 9, 3, 96, 80, {.router = Router::kSoftmaxOfChosen}},
                       {150, 6, 1, 64, 64, {}, true},
                       {700, 3, 1, 448, 192, {}, true},  // tiles of several rows and columns, as the next
                       {410, 5, 2, 320, 128, {.renormalise = true}},
                       {1000, 70, 33, 16, 8}};

struct CudaExperts : Fp8Twins {
  Twin ints(Shape shape) { return output(DType::kI32, shape); }
  void expect_equal(const Twin& twin, const char* what) {
    const std::vector<char> bytes = bytes_of(twin.cuda);
    EXPECT_EQ(std::memcmp(bytes.data(), twin.cpu.data, bytes.size()), 0) << what;
  }
  struct Choices {
    Twin logits, choices, weights, offsets, rows, places;
  };
  Choices choose(const Case& c) {
    Choices s{.logits = with_values(DType::kF32, {c.N, c.E}, [&](int64_t i) { return logit_of(c, i); }),
              .choices = ints({c.N, c.k}),
              .weights = output(DType::kF32, {c.N, c.k}),
              .offsets = ints({c.E + 1}),
              .rows = ints({c.R()}),
              .places = ints({c.N, c.k})};
    run_on_both({s.choices, s.weights}, [&](auto on) {
      return ChooseExperts{
          .logits = on(s.logits), .rule = c.rule, .choices = on(s.choices), .weights = on(s.weights)};
    });
    run_on_both({s.offsets, s.rows, s.places}, [&](auto on) {
      return AssignExperts{
          .choices = on(s.choices), .offsets = on(s.offsets), .rows = on(s.rows), .places = on(s.places)};
    });
    return s;
  }

 private:
  // Some are equal within a token
  float logit_of(const Case& c, int64_t i) {
    if (c.to_one) return static_cast<float>(i % c.E) * 0.5f;
    std::uniform_int_distribution<int> uniform(-20, 20);
    return static_cast<float>(uniform(random_)) * 0.125f;
  }
};

TEST_F(CudaExperts, ChoicesAndRowsAreThoseOfTheCpu) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(text_of(c, DType::kF32));
    const Choices s = choose(c);
    expect_equal(s.choices, "choices");
    expect_same(s.weights, "weights");
    expect_equal(s.offsets, "offsets");
    expect_equal(s.rows, "rows");
    expect_equal(s.places, "places");
    const Twin counts = indices({c.E}, [](int64_t e) { return static_cast<int32_t>(e); }),
               counted = random_indices({c.N}, 2);
    cpu().run(AssignExperts{.choices = s.choices.cpu,
                            .offsets = s.offsets.cpu,
                            .rows = s.rows.cpu,
                            .places = s.places.cpu,
                            .counts = counts.cpu,
                            .counted = counted.cpu});
    cuda().run(AssignExperts{.choices = s.choices.cuda,
                             .offsets = s.offsets.cuda,
                             .rows = s.rows.cuda,
                             .places = s.places.cuda,
                             .counts = counts.cuda,
                             .counted = counted.cuda});
    expect_equal(counts, "counts are added to");
  }
}

TEST_F(CudaExperts, SamplesAreThoseOfTheCpu) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(text_of(c, DType::kF32));
    const Choices s = choose(c);
    const Twin loads = output(DType::kF32, {c.E}), entropy = output(DType::kF32, {1});
    run_on_both({loads, entropy}, [&](auto on) {
      return RouterSample{
          .logits = on(s.logits), .offsets = on(s.offsets), .loads = on(loads), .entropy = on(entropy)};
    });
    expect_same(loads, "loads");
    expect_same(entropy, "entropy");
  }
}

TEST_F(CudaExperts, GradientsOfLogitsAreThoseOfTheCpu) {
  for (const Case& c : kCases)
    for (const bool losses : {false, true}) {
      SCOPED_TRACE(text_of(c, DType::kF32));
      const Choices s = choose(c);
      const Twin d_weights = input(DType::kF32, {c.N, c.k}), counts = random_indices({3, c.E}, 50),
                 counted = random_indices({c.N}, 2);
      run_on_both({s.logits}, [&](auto on) {
        return ChooseExpertsBackward{.logits = on(s.logits),
                                     .choices = on(s.choices),
                                     .d_weights = on(d_weights),
                                     .rule = c.rule,
                                     .counts = losses ? on(counts) : Tensor{},
                                     .counted = losses ? on(counted) : Tensor{},
                                     .balance = losses ? 30.0f : 0,
                                     .z = losses ? 10.0f : 0};
      });
      expect_same(s.logits, "gradients of logits", 4);
    }
}

TEST_F(CudaExperts, RouterIsThatOfTheCpu) {
  for (const DType dtype : kReal)
    for (const Case& c : kCases) {
      SCOPED_TRACE(text_of(c, dtype));
      const Twin x = input(dtype, {c.N, c.C}), weight = input(dtype, {c.E, c.C}), bias = input(dtype, {c.E}),
                 logits = output(DType::kF32, {c.N, c.E});
      for (const bool biased : {false, true}) {
        run_on_both({logits}, [&](auto on) {
          return RouterForward{
              .x = on(x), .weight = on(weight), .logits = on(logits), .bias = biased ? on(bias) : Tensor{}};
        });
        expect_same(logits, "logits");
      }
      const Twin d = input(DType::kF32, {c.N, c.E}), add = input(dtype, {c.N, c.C});
      for (const bool accumulate : {false, true}) {
        const Twin dx = output(dtype, {c.N, c.C}), dweight = input(dtype, {c.E, c.C}),
                   dbias = input(dtype, {c.E});
        run_on_both({dx, dweight, dbias}, [&](auto on) {
          return RouterBackward{.d_logits = on(d),
                                .x = on(x),
                                .weight = on(weight),
                                .dx = on(dx),
                                .dweight = on(dweight),
                                .dbias = on(dbias),
                                .add = accumulate ? on(add) : Tensor{},
                                .accumulate = accumulate};
        });
        expect_same(dx, "dx");
        expect_same(dweight, "dweight", 2);
        expect_same(dbias, "dbias", 2);
      }
    }
}

TEST_F(CudaExperts, ProductsAreThoseOfTheCpu) {
  for (const DType dtype : kReal)
    for (const Case& c : kCases) {
      SCOPED_TRACE(text_of(c, dtype));
      const Choices s = choose(c);
      const Twin x = input(dtype, {c.N, c.C}), expand = input(dtype, {c.E, 2 * c.F, c.C}, 0.3f),
                 contract = input(dtype, {c.E, c.C, c.F}, 0.3f), wide = output(dtype, {c.R(), 2 * c.F}),
                 expand_bias = input(dtype, {c.E, 2 * c.F}), contract_bias = input(dtype, {c.E, c.C}),
                 each = output(dtype, {c.R(), c.C}), y = output(dtype, {c.N, c.C}),
                 hidden = input(dtype, {c.R(), c.F});
      for (const bool biased : {false, true}) {
        run_on_both({wide}, [&](auto on) {
          return ExpertsForward{.x = on(x),
                                .weight = on(expand),
                                .y = on(wide),
                                .offsets = on(s.offsets),
                                .x_rows = on(s.rows),
                                .bias = biased ? on(expand_bias) : Tensor{}};
        });
        expect_same(wide, "gathered rows");
        run_on_both({each}, [&](auto on) {
          return ExpertsForward{.x = on(hidden),
                                .weight = on(contract),
                                .y = on(each),
                                .offsets = on(s.offsets),
                                .bias = biased ? on(contract_bias) : Tensor{}};
        });
        expect_same(each, "rows of experts");
      }
      const Twin rows = input(dtype, {c.R(), c.C}), add = input(dtype, {c.N, c.C});
      for (const bool weighted : {false, true}) {
        run_on_both({y}, [&](auto on) {
          return SumExperts{.x = on(rows),
                            .places = on(s.places),
                            .weights = weighted ? on(s.weights) : Tensor{},
                            .add = weighted ? on(add) : Tensor{},
                            .y = on(y)};
        });
        expect_same(y, "sums", 2);
      }
    }
}

TEST_F(CudaExperts, BackwardsAreThoseOfTheCpu) {
  for (const DType dtype : kReal)
    for (const Case& c : kCases)
      for (const bool accumulate : {false, true}) {
        SCOPED_TRACE(text_of(c, dtype));
        const Choices s = choose(c);
        const Twin x = input(dtype, {c.N, c.C}), expand = input(dtype, {c.E, 2 * c.F, c.C}, 0.3f),
                   contract = input(dtype, {c.E, c.C, c.F}, 0.3f), dy = input(dtype, {c.N, c.C}),
                   hidden = input(dtype, {c.R(), c.F}), d_hidden = output(dtype, {c.R(), c.F}),
                   d_contract = input(dtype, {c.E, c.C, c.F}), d_expand = input(dtype, {c.E, 2 * c.F, c.C}),
                   d_rows = output(dtype, {c.R(), c.C}), d_wide = input(dtype, {c.R(), 2 * c.F}),
                   d_contract_bias = input(dtype, {c.E, c.C}), d_expand_bias = input(dtype, {c.E, 2 * c.F});
        run_on_both({d_hidden, d_contract, d_contract_bias}, [&](auto on) {
          return ExpertsBackward{.dy = on(dy),
                                 .x = on(hidden),
                                 .weight = on(contract),
                                 .dx = on(d_hidden),
                                 .dweight = on(d_contract),
                                 .dbias = on(d_contract_bias),
                                 .offsets = on(s.offsets),
                                 .dy_rows = on(s.rows),
                                 .weights = on(s.weights),
                                 .accumulate = accumulate};
        });
        expect_same(d_hidden, "dx of gathered gradients");
        expect_same(d_contract, "dweight of weighted gradients", 4);
        expect_same(d_contract_bias, "dbias of weighted gradients", 4);
        const Twin in_place = input(dtype, {c.R(), c.F});
        run_on_both({in_place, d_contract}, [&](auto on) {
          return ExpertsBackward{.dy = on(dy),
                                 .x = on(in_place),
                                 .weight = on(contract),
                                 .dx = on(in_place),
                                 .dweight = on(d_contract),
                                 .offsets = on(s.offsets),
                                 .dy_rows = on(s.rows),
                                 .weights = on(s.weights),
                                 .accumulate = accumulate};
        });
        expect_same(in_place, "dx in the place of x");
        expect_same(d_contract, "dweight of rows in whose place dx is", 4);
        run_on_both({d_rows, d_expand, d_expand_bias}, [&](auto on) {
          return ExpertsBackward{.dy = on(d_wide),
                                 .x = on(x),
                                 .weight = on(expand),
                                 .dx = on(d_rows),
                                 .dweight = on(d_expand),
                                 .dbias = on(d_expand_bias),
                                 .offsets = on(s.offsets),
                                 .x_rows = on(s.rows),
                                 .accumulate = accumulate};
        });
        expect_same(d_rows, "dx");
        expect_same(d_expand, "dweight of gathered rows", 2);
        expect_same(d_expand_bias, "dbias of rows", 2);
      }
}

// Of ranks with and without whole packs. u is rounded once before it is used: twice the slack.
TEST_F(CudaExperts, AdaptersAreThoseOfTheCpu) {
  for (const DType dtype : kReal)
    for (const Case& c : kCases)
      for (const int64_t r : {3, 8, 16, 24, 64})
        for (const bool routes : {false, true}) {
          SCOPED_TRACE(fmt::format("{} rank {}{}", text_of(c, dtype), r, routes ? ", of the router" : ""));
          const Choices s = choose(c);
          const int64_t R = routes ? c.N : c.R(), O = routes ? c.E : 2 * c.F;
          const float size = 1 / std::sqrt(static_cast<float>(c.C));
          const Twin x = input(dtype, {c.N, c.C}),
                     a = input(dtype, routes ? Shape{r, c.C} : Shape{c.E, r, c.C}, size),
                     b = input(dtype, routes ? Shape{O, r} : Shape{c.E, O, r}), u = output(dtype, {R, r}),
                     y = input(routes ? DType::kF32 : dtype, {R, O});
          run_on_both({u, y}, [&](auto on) {
            return ExpertsLoraForward{.x = on(x),
                                      .a = on(a),
                                      .b = on(b),
                                      .scale = 0.5f,
                                      .u = on(u),
                                      .y = on(y),
                                      .offsets = routes ? Tensor{} : on(s.offsets),
                                      .x_rows = routes ? Tensor{} : on(s.rows)};
          });
          expect_same(u, "u");
          const double of_u = tolerance::of_operation(dtype) / tolerance::of_operation(y.cuda.dtype);
          expect_same(y, "y", 2 * of_u);
          // The second layer of experts, whose gradient is of tokens; or the router
          const int64_t inputs = routes ? c.C : c.F, outputs = routes ? c.E : c.C;
          const Twin hidden = input(dtype, {R, inputs}),
                     dy = input(routes ? DType::kF32 : dtype, {c.N, outputs}),
                     second_b = input(dtype, routes ? Shape{outputs, r} : Shape{c.E, outputs, r}, size),
                     second_a = input(dtype, routes ? Shape{r, inputs} : Shape{c.E, r, inputs}),
                     du = input(dtype, {R, r}), da = input(dtype, second_a.cpu.shape),
                     db = input(dtype, second_b.cpu.shape), dx = input(dtype, {R, inputs});
          for (const bool accumulate : {false, true}) {
            run_on_both({du, da, db}, [&](auto on) {
              return ExpertsLoraBackward{.dy = on(dy),
                                         .x = on(hidden),
                                         .b = on(second_b),
                                         .scale = 0.5f,
                                         .u = on(du),
                                         .da = on(da),
                                         .db = on(db),
                                         .offsets = routes ? Tensor{} : on(s.offsets),
                                         .dy_rows = routes ? Tensor{} : on(s.rows),
                                         .weights = routes ? Tensor{} : on(s.weights),
                                         .accumulate = accumulate};
            });
            expect_same(du, "du");
            expect_same(da, "da", 4);
            expect_same(db, "db", 4);
          }
          run_on_both({dx}, [&](auto on) {
            return ExpertsLoraInput{
                .u = on(du), .a = on(second_a), .dx = on(dx), .offsets = routes ? Tensor{} : on(s.offsets)};
          });
          expect_same(dx, "dx", 2);
        }
}

// The shared expert of a token, times a sigmoid
TEST_F(CudaExperts, SharedExpertsAreThoseOfTheCpu) {
  for (const DType dtype : kReal)
    for (const auto& [N, C] : {std::pair{int64_t{1}, int64_t{8}}, {33, 136}, {257, 1032}}) {
      SCOPED_TRACE(fmt::format("{} N {} C {}", name_of(dtype), N, C));
      const Twin x = input(dtype, {N, C}), logits = input(DType::kF32, {N, 1}, 3), y = input(dtype, {N, C}),
                 dy = input(dtype, {N, C});
      run_on_both({y}, [&](auto on) {
        return AddShared{.x = on(x), .logits = on(logits), .add = on(y), .y = on(y)};
      });
      expect_same(y, "y");
      run_on_both({logits, x}, [&](auto on) {
        return AddSharedBackward{.dy = on(dy), .x = on(x), .d_logits = on(logits), .dx = on(x)};
      });
      expect_same(x, "dx");
      expect_same(logits, "gradients of logits", 4);
    }
}

TEST_F(CudaExperts, GatesAreThoseOfTheCpu) {
  for (const DType dtype : kReal)
    for (const Gate gate : kAllGates)
      for (const Case& c : kCases) {
        SCOPED_TRACE(text_of(c, dtype));
        const Choices s = choose(c);
        const Twin dy = input(dtype, {c.R(), c.F}), gate_up = input(dtype, {c.R(), 2 * c.F}, 4),
                   d_sum = input(dtype, {c.N, c.C}), bias = input(dtype, {c.E, c.C});
        const bool biased = gate == Gate::kClampedSilu;
        run_on_both({gate_up, s.weights}, [&](auto on) {
          return GatedExpertsBackward{.dy = on(dy),
                                      .gate_up = on(gate_up),
                                      .d_gate_up = on(gate_up),
                                      .rows = on(s.rows),
                                      .weights = on(s.weights),
                                      .gate = gate,
                                      .d_sum = biased ? on(d_sum) : Tensor{},
                                      .bias = biased ? on(bias) : Tensor{},
                                      .choices = biased ? on(s.choices) : Tensor{}};
        });
        expect_same(gate_up, "d_gate_up");
        expect_same(s.weights, "gradients of weights", 4);
      }
}

// Products of FP8 values: of multiples of 64, which our kernels for Hopper take, and of other sizes
TEST_F(CudaExperts, ProductsInFp8AreThoseOfTheCpu) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(text_of(c, DType::kBF16));
    const Choices s = choose(c);
    const auto bf16 = [&](const Shape& shape, float spread = 1) {
      return input(DType::kBF16, shape, spread);
    };
    const auto result = [&](const Shape& shape) { return output(DType::kBF16, shape); };
    const Twin x = bf16({c.N, c.C}), hidden = bf16({c.R(), c.F}), dy = bf16({c.N, c.C}, 1e-5f),
               d_wide = bf16({c.R(), 2 * c.F}, 1e-5f), expand = bf16({c.E, 2 * c.F, c.C}, 0.1f),
               contract = bf16({c.E, c.C, c.F}, 0.1f), bias = bf16({c.E, 2 * c.F}),
               wide = result({c.R(), 2 * c.F}), each = result({c.R(), c.C}), d_hidden = result({c.R(), c.F}),
               d_contract = bf16({c.E, c.C, c.F}, 1e-4f), d_expand = bf16({c.E, 2 * c.F, c.C}, 1e-4f);
    const Quantised x8 = quantised(x, DType::kE4M3), hidden8 = quantised(hidden, DType::kE4M3),
                    dy8 = quantised(dy, DType::kE5M2), d_wide8 = quantised(d_wide, DType::kE5M2),
                    expand8 = quantised(expand, DType::kE4M3), contract8 = quantised(contract, DType::kE4M3);
    for (const bool biased : {false, true}) {
      run_on_both({wide}, [&](auto on) {
        return ExpertsForward{.x = on(x),
                              .weight = on(expand),
                              .y = on(wide),
                              .offsets = on(s.offsets),
                              .x_rows = on(s.rows),
                              .bias = biased ? on(bias) : Tensor{},
                              .fp8_x = on(x8.cpu(), x8.cuda()),
                              .fp8_weight = on(expand8.cpu(), expand8.cuda())};
      });
      expect_same(wide, "gathered rows");
    }
    run_on_both({each}, [&](auto on) {
      return ExpertsForward{.x = on(hidden),
                            .weight = on(contract),
                            .y = on(each),
                            .offsets = on(s.offsets),
                            .fp8_x = on(hidden8.cpu(), hidden8.cuda()),
                            .fp8_weight = on(contract8.cpu(), contract8.cuda())};
    });
    expect_same(each, "rows of experts");
    run_on_both({d_hidden, d_contract}, [&](auto on) {
      return ExpertsBackward{.dy = on(dy),
                             .x = on(hidden),
                             .weight = on(contract),
                             .dx = on(d_hidden),
                             .dweight = on(d_contract),
                             .offsets = on(s.offsets),
                             .dy_rows = on(s.rows),
                             .weights = on(s.weights),
                             .fp8_dy = on(dy8.cpu(), dy8.cuda()),
                             .fp8_weight = on(contract8.cpu_transposed(), contract8.cuda_transposed())};
    });
    expect_same(d_hidden, "dx of gathered gradients");
    expect_same(d_contract, "dweight of weighted gradients", 4);
    run_on_both({each, d_expand}, [&](auto on) {
      return ExpertsBackward{.dy = on(d_wide),
                             .x = on(x),
                             .weight = on(expand),
                             .dx = on(each),
                             .dweight = on(d_expand),
                             .offsets = on(s.offsets),
                             .x_rows = on(s.rows),
                             .fp8_dy = on(d_wide8.cpu(), d_wide8.cuda()),
                             .fp8_weight = on(expand8.cpu_transposed(), expand8.cuda_transposed())};
    });
    expect_same(each, "dx");
    expect_same(d_expand, "dweight of gathered rows", 2);
  }
}

TEST_F(CudaExperts, GatesWriteTheFp8OfQuantise) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(text_of(c, DType::kBF16));
    const Choices s = choose(c);
    const Twin weights = s.weights;
    const GatedExpertsBackward op{.dy = input(DType::kBF16, {c.R(), c.F}).cuda,
                                  .gate_up = input(DType::kBF16, {c.R(), 2 * c.F}, 4).cuda,
                                  .d_gate_up = output(DType::kBF16, {c.R(), 2 * c.F}).cuda,
                                  .rows = s.rows.cuda,
                                  .weights = weights.cuda};
    expect_fp8(op, &GatedExpertsBackward::d_gate_up, &GatedExpertsBackward::fp8_d_gate_up, DType::kE5M2,
               weights);
  }
}

}  // namespace
}  // namespace tessera
