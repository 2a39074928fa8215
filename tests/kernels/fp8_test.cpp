// FP8: its numbers against their definition, and the operations on the CPU against their formulas in fp64.
#include "kernels/base/fp8.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/base/fp8_scale.h"
#include "kernels/base/text.h"
#include "kernels/expert_ops.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/linear_gemms.h"
#include "kernels/op_cost.h"
#include "tests/kernels/formula.h"
#include "tests/says.h"

namespace tessera::testing {
namespace {

constexpr DType kFormats[] = {DType::kE4M3, DType::kE5M2};

// The number of a code, by the specification: (-1)^s 2^(e - bias) (1 + m / 2^bits), without the 1 for e = 0
double by_definition(int code, DType dtype) {
  const int bits = dtype == DType::kE4M3 ? 3 : 2, bias = dtype == DType::kE4M3 ? 7 : 15;
  const int e = code >> bits & ((1 << (7 - bits)) - 1), m = code & ((1 << bits) - 1);
  const double fraction = m / static_cast<double>(1 << bits);
  const double size = e == 0 ? std::pow(2.0, 1 - bias) * fraction : std::pow(2.0, e - bias) * (1 + fraction);
  return code & 0x80 ? -size : size;
}
bool is_finite(int code, DType dtype) {  // e4m3 has no infinity, and one NaN of each sign
  return dtype == DType::kE4M3 ? (code & 0x7f) != 0x7f : (code & 0x7c) != 0x7c;
}

// The finite numbers of 0 and above, in ascending order: those of the bytes 0, 1, 2 ...
std::vector<double> numbers(DType dtype) {
  std::vector<double> all;
  for (int code = 0; code < 128 && is_finite(code, dtype); ++code) all.push_back(by_definition(code, dtype));
  return all;
}

TEST(Fp8, EveryCodeIsItsNumber) {
  for (const DType dtype : kFormats)
    for (int code = 0; code < 256; ++code) {
      const float number = float_from_fp8(static_cast<uint8_t>(code), dtype);
      if (!is_finite(code, dtype)) {
        const bool infinite = dtype == DType::kE5M2 && (code & 3) == 0;
        EXPECT_TRUE(infinite ? std::isinf(number) : std::isnan(number)) << name_of(dtype) << " " << code;
        continue;
      }
      EXPECT_EQ(number, by_definition(code, dtype)) << name_of(dtype) << " " << code;
      EXPECT_EQ(std::signbit(number), code >= 128);
      EXPECT_EQ(round_to_fp8(number, fp8_format(dtype)), number);
      EXPECT_EQ(fp8_from_float(number, dtype), code) << name_of(dtype) << " " << number;
    }
  EXPECT_EQ(numbers(DType::kE4M3).size(), 127u);
  EXPECT_EQ(numbers(DType::kE4M3).back(), 448);
  EXPECT_EQ(numbers(DType::kE5M2).size(), 124u);
  EXPECT_EQ(numbers(DType::kE5M2).back(), 57344);
}

// The middle of two neighbours goes to the one with an even code, everything else to the nearer one.
TEST(Fp8, RoundsToTheNearestAndTiesToEven) {
  for (const DType dtype : kFormats) {
    const std::vector<double> all = numbers(dtype);
    const Fp8Format format = fp8_format(dtype);
    for (size_t i = 0; i + 1 < all.size(); ++i) {
      const auto middle = static_cast<float>((all[i] + all[i + 1]) / 2);  // exact in fp32
      const double even = all[i % 2 == 0 ? i : i + 1];
      for (const float sign : {1.0f, -1.0f}) {
        EXPECT_EQ(round_to_fp8(sign * middle, format), sign * even) << name_of(dtype) << " " << middle;
        EXPECT_EQ(round_to_fp8(sign * std::nextafter(middle, 0.0f), format), sign * all[i]);
        EXPECT_EQ(round_to_fp8(sign * std::nextafter(middle, 1e9f), format), sign * all[i + 1]);
        EXPECT_EQ(float_from_fp8(fp8_from_float(sign * middle, dtype), dtype), sign * even);
      }
    }
  }
}

TEST(Fp8, BoundsWhatIsTooLargeAndKeepsNaN) {
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  for (const DType dtype : kFormats) {
    const Fp8Format format = fp8_format(dtype);
    for (const float large : {format.largest * 1.0001f, format.largest * 1e6f, 3e38f, infinity}) {
      EXPECT_EQ(round_to_fp8(large, format), format.largest);
      EXPECT_EQ(round_to_fp8(-large, format), -format.largest);
    }
    EXPECT_TRUE(std::isnan(round_to_fp8(nan, format)));
    EXPECT_TRUE(std::isnan(float_from_fp8(fp8_from_float(nan, dtype), dtype)));
    for (const float tiny : {0.0f, 1e-30f, std::numeric_limits<float>::denorm_min()})
      EXPECT_EQ(round_to_fp8(tiny, format), 0.0f);
  }
}

// The least power of two with which the largest element fits
TEST(Fp8, ScaleIsTheLeastThatFits) {
  HostTensors make;
  std::vector<float> sizes = {1, 1.75f, std::nextafter(1.75f, 2.0f), 448, 449, 57344, 57345, 1e-12f, 1e20f};
  const Tensor random = make.normal({100});
  for (const float x : floats(random)) sizes.push_back(std::abs(x));
  for (const bool is_e4m3 : {true, false})
    for (const float amax : sizes) {
      const double largest = is_e4m3 ? 448 : 57344;
      const auto scale_of = [&](int headroom) {
        return std::bit_cast<float>(fp8_scale(std::bit_cast<uint32_t>(amax), is_e4m3, headroom));
      };
      const double scale = scale_of(0);
      EXPECT_EQ(scale, std::exp2(std::round(std::log2(scale)))) << amax;
      EXPECT_LE(amax / scale, largest) << amax;
      EXPECT_GT(amax / (scale / 2), largest) << amax;
      EXPECT_EQ(scale_of(2), 4 * scale);
    }
  for (const uint32_t none : {0u, kInfinityBits, kInfinityBits + 1})
    EXPECT_EQ(fp8_scale(none, true, 1), kFp8One);
  for (const uint32_t extreme : {1u, 0x7f7fffffu}) {
    const float scale = std::bit_cast<float>(fp8_scale(extreme, false, 0));
    EXPECT_TRUE(std::isnormal(scale) && std::isnormal(1 / scale));
  }
}

struct Fp8Ops : ::testing::Test {
  HostTensors make;
  CpuStream cpu;

  // By the bytes, the nearest by a search: nothing of fp8.h
  static double nearest(double x, DType dtype) {
    const std::vector<double> all = numbers(dtype);
    const double size = std::min(std::abs(x), all.back());
    size_t best = 0;
    for (size_t i = 1; i < all.size(); ++i) {
      const double far = std::abs(all[best] - size), now = std::abs(all[i] - size);
      if (now < far || (now == far && i % 2 == 0)) best = i;
    }
    return x < 0 ? -all[best] : all[best];
  }

  Fp8Matrix matrix(Shape shape, float scale = 1) { return {make.poisoned(shape), make.scalar(scale)}; }
  Fp8Matrix quantised(const Tensor& x, DType format, Tensor transposed = {}) {
    const Fp8Matrix y = matrix(x.shape);
    cpu.run(Quantise{.x = x, .format = format, .y = y, .transposed = transposed, .current = true});
    return y;
  }

  // The operation's result has the same bits with FP8 values as without. These and the largest element are
  // those that Quantise finds of it.
  template <class Op>
  void expect_fp8(Op op, Tensor Op::*result, Fp8Output Op::*fp8, DType format) {
    const Shape shape = (op.*result).shape;
    const Fp8Matrix wanted = matrix(shape, 0.25f);
    const Fp8Output found{.y = matrix(shape, 0.25f), .amax = make.scalar(0.125f)};
    const Tensor amax = make.scalar(0.125f);
    Op both = op;
    both.*result = make.copy_of(op.*result), both.*fp8 = found;  // the operation may read its result
    cpu.run(op);
    cpu.run(Quantise{.x = op.*result, .format = format, .y = wanted, .amax = amax});
    cpu.run(both);
    expect_same_bits(both.*result, op.*result, Op::kName);
    expect_same_bits(found.y.data, wanted.data, Op::kName);
    expect_same_bits(found.amax, amax, Op::kName);
    EXPECT_GT(floats(amax)[0], 0.125f);
  }
};

TEST_F(Fp8Ops, QuantiseRoundsEveryElementAndItsTranspose) {
  for (const DType format : kFormats)
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 5}, Shape{17, 33}}) {
      const int64_t N = shape[0], C = shape[1];
      const Tensor x = make.normal(shape, 100), t = make.poisoned({C, N}), amax = make.scalar(0.5f);
      for (const float scale : {0.25f, 1.0f, 0x1p-9f}) {
        const Fp8Matrix y = matrix(shape, scale);
        floats(amax)[0] = 0.5f;
        cpu.run(Quantise{.x = x, .format = format, .y = y, .transposed = t, .amax = amax});
        float largest = 0.5f;
        for (int64_t n = 0; n < N; ++n)
          for (int64_t c = 0; c < C; ++c) {
            const float value = floats(x)[static_cast<size_t>(n * C + c)];
            largest = std::max(largest, std::abs(value));
            const double want = scale * nearest(static_cast<double>(value) / scale, format);
            ASSERT_EQ(floats(y.data)[static_cast<size_t>(n * C + c)], want) << value << " by " << scale;
            ASSERT_EQ(floats(t)[static_cast<size_t>(c * N + n)], want);
          }
        EXPECT_EQ(floats(amax)[0], largest);
        EXPECT_EQ(floats(y.scale)[0], scale);
      }
    }
}

TEST_F(Fp8Ops, CountsWhatQuantiseCutsOff) {
  const auto no_count = [&] {
    const Tensor count = make.empty({2}, DType::kI32);
    std::memset(count.data, 0, count.bytes());
    return count;
  };
  const auto count_in = [](const Tensor& count) {
    uint64_t found = 0;
    std::memcpy(&found, count.data, sizeof found);
    return found;
  };
  for (const DType format : kFormats) {
    const double largest = numbers(format).back();
    for (const float scale : {0.25f, 1.0f, 0x1p-9f}) {
      const Tensor x = make.normal({17, 33}, static_cast<float>(largest) * scale), count = no_count();
      const auto values = floats(x);
      values[0] = static_cast<float>(largest) * scale;  // the largest number itself is not cut off
      values[1] = -std::nextafter(values[0], INFINITY), values[2] = INFINITY, values[3] = NAN;
      uint64_t expected = 0;
      for (const float value : values) expected += std::abs(static_cast<double>(value)) / scale > largest;
      EXPECT_GT(expected, 17u * 33 / 4);
      const CountSaturated op{.x = x, .format = format, .scale = make.scalar(scale), .count = count};
      cpu.run(op);
      EXPECT_EQ(count_in(count), expected);
      cpu.run(op);
      EXPECT_EQ(count_in(count), 2 * expected) << "it adds";
      const Tensor own = no_count();
      const Fp8Matrix y = quantised(make.normal({17, 33}, 1000), format);
      cpu.run(CountSaturated{.x = y.data, .format = format, .scale = y.scale, .count = own});
      EXPECT_EQ(count_in(own), 0u) << "by its own scale nothing is";
    }
  }
  const Tensor x = make.normal({2, 2});
  EXPECT_THROW(
      cpu.run(CountSaturated{.x = x, .format = DType::kBF16, .scale = make.scalar(1), .count = no_count()}),
      Error);
}

TEST_F(Fp8Ops, ACurrentScaleIsThatOfTheTensor) {
  const Tensor x = make.normal({4, 6});
  floats(x)[7] = -900;  // 448 < 900 / 2 <= 2 x 448
  const Fp8Matrix y = matrix({4, 6}, 77);
  cpu.run(Quantise{.x = x, .format = DType::kE4M3, .y = y, .current = true});
  EXPECT_EQ(floats(y.scale)[0], 4);
  EXPECT_EQ(floats(y.data)[7], -896);  // 225 is between 224 and 240
  const Fp8Matrix zero = matrix({2, 2}, 77);
  cpu.run(Quantise{.x = make.zeros({2, 2}), .format = DType::kE5M2, .y = zero, .current = true});
  EXPECT_EQ(floats(zero.scale)[0], 1);
  EXPECT_EQ(floats(zero.data)[3], 0);
}

TEST_F(Fp8Ops, AmaxOfNaNIsNoScale) {
  const Tensor x = make.normal({2, 2}), amax = make.zeros({1, 2, 1}),
               scale = make.zeros({2, 1, kFp8ScaleStride});
  floats(x)[1] = std::numeric_limits<float>::quiet_NaN();
  floats(scale)[0] = 3, floats(scale)[kFp8ScaleStride] = 5;
  const Tensor first = amax.view({2}).rows(0, 1);
  cpu.run(Quantise{.x = x, .format = DType::kE4M3, .y = matrix({2, 2}), .amax = first});
  EXPECT_TRUE(std::isnan(floats(amax)[0]));
  cpu.run(UpdateScales{.amax = amax, .scale = scale});
  EXPECT_EQ(floats(scale)[0], 3);
  EXPECT_EQ(floats(scale)[kFp8ScaleStride], 5);  // its amax is 0
}

// Of three ranks the largest decides, with a binade to spare, or four in e5m2, the second half.
TEST_F(Fp8Ops, ScalesFollowTheLargestOfAllRanks) {
  const Tensor amax = make.zeros({3, 2, 2}), scale = make.poisoned({2, 2, kFp8ScaleStride});
  const float of_rank[3][4] = {{1, 2, 3, 448}, {448, 1, 1, 1}, {2, 449, 57345, 2}};
  for (size_t r = 0; r < 3; ++r)
    for (size_t i = 0; i < 4; ++i) floats(amax)[4 * r + i] = of_rank[r][i];
  cpu.run(UpdateScales{.amax = amax, .scale = scale});
  EXPECT_EQ(floats(scale)[0], 2);
  EXPECT_EQ(floats(scale)[kFp8ScaleStride], 4);
  EXPECT_EQ(floats(scale)[2 * kFp8ScaleStride], 2 * 16);
  EXPECT_EQ(floats(scale)[3 * kFp8ScaleStride], 0x1p-7f * 16);
}

// Of matrices of which ranks have parts: the scales are those that Quantise finds of the whole.
TEST_F(Fp8Ops, CurrentScalesOfPartsAreThatOfTheWhole) {
  const Tensor whole = make.normal({6, 8}, 30), zero = make.zeros({1, 8}), amax = make.zeros({3, 1, 2}),
               scale = make.poisoned({1, 2, kFp8ScaleStride});
  const Tensor all = amax.view({6});
  for (int64_t rank = 0; rank < 3; ++rank) {
    cpu.run(Quantise{.x = whole.rows(2 * rank, 2),
                     .format = DType::kE4M3,
                     .y = {.data = {}, .scale = make.scalar(1)},
                     .amax = all.rows(2 * rank, 1)});
    cpu.run(Quantise{.x = zero,
                     .format = DType::kE4M3,
                     .y = {.data = {}, .scale = make.scalar(1)},
                     .amax = all.rows(2 * rank + 1, 1)});
  }
  cpu.run(UpdateScales{.amax = amax, .scale = scale, .current = true});
  const Fp8Matrix expected = quantised(whole, DType::kE4M3);
  EXPECT_EQ(floats(scale)[0], floats(expected.scale)[0]);
  EXPECT_EQ(floats(scale)[kFp8ScaleStride], 1);  // of zeros
  floats(amax)[0] = std::numeric_limits<float>::infinity();
  cpu.run(UpdateScales{.amax = amax, .scale = scale, .current = true});
  EXPECT_EQ(floats(scale)[0], 1);
}

TEST_F(Fp8Ops, ValuesAreTakenBackAndTurned) {
  const Tensor x = make.normal({5, 9}, 0.02), t = make.poisoned({9, 5}), back = make.poisoned({5, 9}),
               turned = make.poisoned({9, 5});
  const Fp8Matrix y = quantised(x, DType::kE4M3, t);
  cpu.run(Dequantise{.x = y, .y = back});
  for (size_t i = 0; i < 45; ++i) {
    const double scale = static_cast<double>(floats(y.scale)[0]);
    EXPECT_EQ(floats(back)[i], scale * nearest(static_cast<double>(floats(x)[i]) / scale, DType::kE4M3));
  }
  cpu.run(TransposeFp8{.x = y.data, .y = turned});
  expect_same_bits(turned, t, "turned");
}

// Several matrices have one scale; each is transposed by itself.
TEST_F(Fp8Ops, MatricesOfExpertsAreRoundedAndTurned) {
  const Tensor x = make.normal({3, 4, 5}, 0.02), t = make.poisoned({3, 5, 4}),
               turned = make.poisoned({3, 5, 4});
  const Fp8Matrix y = quantised(x, DType::kE4M3, t);
  cpu.run(TransposeFp8{.x = y.data, .y = turned});
  expect_same_bits(turned, t, "turned");
  const double scale = floats(y.scale)[0];
  for (size_t e = 0; e < 3; ++e)
    for (size_t n = 0; n < 4; ++n)
      for (size_t c = 0; c < 5; ++c) {
        const size_t at = e * 20 + n * 5 + c;
        EXPECT_EQ(floats(y.data)[at], scale * nearest(floats(x)[at] / scale, DType::kE4M3));
        EXPECT_EQ(floats(t)[e * 20 + c * 4 + n], floats(y.data)[at]);
      }
}

// Experts multiply rounded factors in the forward and for dx. The gradients of weights have the plain ones.
TEST_F(Fp8Ops, ExpertsMultiplyTheRoundedFactors) {
  constexpr int64_t kTokens = 6, kActive = 2, kExperts = 3, kRows = kTokens * kActive, C = 7, O = 5;
  const auto ids = [&](Shape shape, std::initializer_list<int32_t> values) {
    const Tensor to = make.empty(shape, DType::kI32);
    std::ranges::copy(values, to.as<int32_t>());
    return to;
  };
  const Tensor x = make.normal({kTokens, C}), w = make.normal({kExperts, O, C}),
               bias = make.normal({kExperts, O}), dy = make.normal({kRows, O}),
               wide = make.poisoned({kExperts, C, O}),
               offsets = ids({kExperts + 1}, {0, 5, 5, 12}),  // one expert has no row
      rows = ids({kRows}, {0, 2, 4, 6, 9, 1, 3, 5, 7, 8, 10, 11});
  const Fp8Matrix x8 = quantised(x, DType::kE4M3), w8 = quantised(w, DType::kE4M3, wide),
                  dy8 = quantised(dy, DType::kE5M2);
  const auto forward = [&](const Tensor& by_x, const Tensor& by_w, bool fp8) {
    ExpertsForward op{.x = by_x,
                      .weight = by_w,
                      .y = make.poisoned({kRows, O}),
                      .offsets = offsets,
                      .x_rows = rows,
                      .bias = bias};
    if (fp8) op.fp8_x = x8, op.fp8_weight = w8;
    cpu.run(op);
    return op.y;
  };
  expect_same_bits(forward(x, w, true), forward(x8.data, w8.data, false), "y");
  const auto backward = [&](const Tensor& by_dy, const Tensor& by_w, bool fp8) {
    ExpertsBackward op{.dy = by_dy,
                       .x = x,
                       .weight = by_w,
                       .dx = make.poisoned({kRows, C}),
                       .dweight = make.poisoned({kExperts, O, C}),
                       .offsets = offsets,
                       .x_rows = rows,
                       .accumulate = false};
    if (fp8) op.fp8_dy = dy8, op.fp8_weight = {wide, w8.scale};
    cpu.run(op);
    return op;
  };
  const ExpertsBackward in_fp8 = backward(dy, w, true);
  expect_same_bits(in_fp8.dx, backward(dy8.data, w8.data, false).dx, "dx");
  expect_same_bits(in_fp8.dweight, backward(dy, w, false).dweight, "dweight");

  ExpertsForward other{.x = x, .weight = w, .y = make.empty({kRows, O}), .offsets = offsets, .x_rows = rows};
  other.fp8_x = x8;
  EXPECT_TRUE(says(refusal_of(cpu, other), {"experts forward: fp8_weight ", "fp32 [3, 5, 7]"}));
  other.fp8_weight = {wide, w8.scale};
  EXPECT_TRUE(says(refusal_of(cpu, other), {"experts forward: fp8_weight ", "fp32 [3, 5, 7]", "[3, 7, 5]"}));

  GatedExpertsBackward gates{.dy = make.normal({kRows, O}),
                             .gate_up = make.normal({kRows, 2 * O}),
                             .d_gate_up = make.poisoned({kRows, 2 * O}),
                             .rows = rows,
                             .weights = make.normal({kTokens, kActive})};
  GatedExpertsBackward writes = gates;
  writes.weights = make.copy_of(gates.weights), writes.d_gate_up = make.poisoned({kRows, 2 * O});
  writes.fp8_d_gate_up = {.y = matrix({kRows, 2 * O}, 0.25f), .amax = make.scalar(0)};
  const Fp8Output wanted{.y = matrix({kRows, 2 * O}, 0.25f), .amax = make.scalar(0)};
  cpu.run(gates);
  cpu.run(writes);
  cpu.run(Quantise{.x = gates.d_gate_up, .format = DType::kE5M2, .y = wanted.y, .amax = wanted.amax});
  expect_same_bits(writes.d_gate_up, gates.d_gate_up, "d_gate_up");
  expect_same_bits(writes.fp8_d_gate_up.y.data, wanted.y.data, "d_gate_up in FP8");
  expect_same_bits(writes.fp8_d_gate_up.amax, wanted.amax, "its largest element");
}

TEST_F(Fp8Ops, ForwardIsTheProductOfTheRoundedFactors) {
  for (const auto [N, C, O] : {std::array<int64_t, 3>{1, 1, 1}, {3, 7, 5}, {33, 40, 24}})
    for (const bool activates : {false, true}) {
      const Tensor x = make.normal({N, C}, 3), w = make.normal({O, C}, 0.02), b = make.normal({O}),
                   y = make.poisoned({N, O}), u = make.poisoned({N, O});
      const Fp8Matrix x8 = quantised(x, DType::kE4M3), w8 = quantised(w, DType::kE4M3);
      LinearForward op{.x = x, .weight = w, .y = y, .bias = b, .fp8_x = x8, .fp8_weight = w8};
      if (activates) op.pre_activation = u;
      cpu.run(op);
      Doubles want(static_cast<size_t>(N * O));
      for (int64_t n = 0; n < N; ++n)
        for (int64_t o = 0; o < O; ++o) {
          double sum = floats(b)[static_cast<size_t>(o)];
          for (int64_t c = 0; c < C; ++c)
            sum += static_cast<double>(floats(x8.data)[static_cast<size_t>(n * C + c)]) *
                   floats(w8.data)[static_cast<size_t>(o * C + c)];
          want[static_cast<size_t>(n * O + o)] = sum;
        }
      expect_formula(activates ? u : y, want, "the product");
      if (!activates) continue;
      for (size_t i = 0; i < want.size(); ++i)
        want[i] = 0.5 * want[i] *
                  (1 + std::tanh(std::sqrt(2 / M_PI) * (want[i] + 0.044715 * want[i] * want[i] * want[i])));
      expect_formula(y, want, "gelu");
    }
}

// dx is of the rounded factors, the gradients of weight and bias are not.
TEST_F(Fp8Ops, BackwardRoundsTheFactorsOfDxAlone) {
  constexpr int64_t N = 19, C = 7, O = 10;
  const Tensor x = make.normal({N, C}), w = make.normal({O, C}, 0.02), dy = make.normal({N, O}, 1e-6);
  const Tensor t = make.poisoned({C, O});
  const Fp8Matrix w8 = quantised(w, DType::kE4M3, t), dy8 = quantised(dy, DType::kE5M2);
  LinearBackward plain{.dy = dy,
                       .x = x,
                       .weight = w,
                       .dx = make.poisoned({N, C}),
                       .dweight = make.zeros({O, C}),
                       .dbias = make.zeros({O})};
  LinearBackward rounded = plain;
  rounded.dx = make.poisoned({N, C}), rounded.dweight = make.zeros({O, C}), rounded.dbias = make.zeros({O});
  rounded.fp8_dy = dy8, rounded.fp8_weight = {t, w8.scale};
  cpu.run(plain), cpu.run(rounded);
  expect_same_bits(rounded.dweight, plain.dweight, "dweight");
  expect_same_bits(rounded.dbias, plain.dbias, "dbias");
  Doubles want(static_cast<size_t>(N * C));
  for (size_t n = 0; n < N; ++n)
    for (size_t c = 0; c < C; ++c)
      for (size_t o = 0; o < O; ++o)
        want[n * C + c] += static_cast<double>(floats(dy8.data)[n * O + o]) * floats(w8.data)[o * C + c];
  expect_formula(rounded.dx, want, "dx");
  EXPECT_LT(relative_error(rounded.dx, plain.dx), tolerance::kFp8Product);
  EXPECT_GT(relative_error(rounded.dx, plain.dx), 1e-3) << "nothing was rounded";
}

// dweight, which is added to, of transposed copies that are rounded; dbias of the gradient itself
TEST_F(Fp8Ops, BackwardTakesTheRoundedFactorsOfDweight) {
  for (const bool accumulate : {false, true}) {
    constexpr int64_t N = 19, C = 7, O = 10;
    const Tensor x = make.normal({N, C}, 3), w = make.normal({O, C}, 0.02), dy = make.normal({N, O}, 1e-6);
    const Fp8Matrix x8 = quantised(x, DType::kE4M3), dy8 = quantised(dy, DType::kE5M2);
    const Tensor xt = make.poisoned({C, N}), dyt = make.poisoned({O, N});
    cpu.run(Quantise{.x = x, .format = DType::kE4M3, .y = {{}, x8.scale}, .transposed = xt});
    cpu.run(Quantise{.x = dy, .format = DType::kE5M2, .y = {{}, dy8.scale}, .transposed = dyt});
    LinearBackward plain{.dy = dy,
                         .x = x,
                         .weight = w,
                         .dx = make.poisoned({N, C}),
                         .dweight = make.normal({O, C}, 1e-6),
                         .dbias = make.zeros({O}),
                         .accumulate = accumulate};
    LinearBackward rounded = plain;
    rounded.dx = make.poisoned({N, C}), rounded.dweight = make.zeros({O, C}), rounded.dbias = make.zeros({O});
    rounded.fp8_dy_transposed = {dyt, dy8.scale}, rounded.fp8_x_transposed = {xt, x8.scale};
    Doubles want(static_cast<size_t>(O * C));
    for (size_t i = 0; i < want.size(); ++i) {
      floats(rounded.dweight)[i] = floats(plain.dweight)[i];
      if (accumulate) want[i] = floats(plain.dweight)[i];
    }
    for (size_t n = 0; n < N; ++n)
      for (size_t o = 0; o < O; ++o)
        for (size_t c = 0; c < C; ++c)
          want[o * C + c] += static_cast<double>(floats(dy8.data)[n * O + o]) * floats(x8.data)[n * C + c];
    cpu.run(plain), cpu.run(rounded);
    expect_formula(rounded.dweight, want, "dweight");
    expect_same_bits(rounded.dx, plain.dx, "dx");
    expect_same_bits(rounded.dbias, plain.dbias, "dbias");
    EXPECT_LT(relative_error(rounded.dweight, plain.dweight), tolerance::kFp8Product);
    EXPECT_GT(relative_error(rounded.dweight, plain.dweight), 1e-3) << "nothing was rounded";
  }
}

// What cuBLASLt is asked for: both factors with k next to one another, their dtypes, and their scales.
TEST(Fp8Gemms, HaveBothFactorsAlongK) {
  constexpr int64_t N = 48, C = 16, O = 32;
  float scales[3] = {};
  const auto on_gpu = [](DType dtype, Shape shape) { return Tensor{nullptr, dtype, shape, Device::kCuda}; };
  const auto fp8 = [&](DType dtype, Shape shape, float& scale) {
    return Fp8Matrix{on_gpu(dtype, shape), {&scale, DType::kF32, {1}, Device::kCuda}};
  };
  const LinearForward forward{.x = on_gpu(DType::kBF16, {N, C}),
                              .weight = on_gpu(DType::kBF16, {O, C}),
                              .y = on_gpu(DType::kBF16, {N, O}),
                              .fp8_x = fp8(DType::kE4M3, {N, C}, scales[0]),
                              .fp8_weight = fp8(DType::kE4M3, {O, C}, scales[1])};
  forward.check_on(Device::kCuda);
  const Gemm y = gemms_of(forward).fused;
  EXPECT_EQ(describe(key_of(y)), "e4m3 [48, 16] x e4m3 [32, 16]^T in bf16");
  EXPECT_EQ(y.a.scale, &scales[0]);
  EXPECT_EQ(y.b.scale, &scales[1]);
  LinearBackward backward{.dy = on_gpu(DType::kBF16, {N, O}),
                          .x = forward.x,
                          .weight = forward.weight,
                          .dx = forward.x,
                          .dweight = forward.weight,
                          .fp8_dy = fp8(DType::kE5M2, {N, O}, scales[2]),
                          .fp8_weight = fp8(DType::kE4M3, {C, O}, scales[1])};
  backward.check_on(Device::kCuda);
  const LinearBackwardGemms gemms = gemms_of(backward);
  EXPECT_EQ(describe(key_of(gemms.dx)), "e5m2 [48, 32] x e4m3 [16, 32]^T in bf16");
  EXPECT_EQ(gemms.dx.a.scale, &scales[2]);
  EXPECT_EQ(describe(key_of(*gemms.dweight)), "[48, 32]^T x [48, 16] in bf16, adds");
  backward.fp8_dy_transposed = fp8(DType::kE5M2, {O, N}, scales[2]);
  backward.fp8_x_transposed = fp8(DType::kE4M3, {C, N}, scales[0]);
  backward.check_on(Device::kCuda);
  const Gemm dweight = *gemms_of(backward).dweight;
  EXPECT_EQ(describe(key_of(dweight)), "e5m2 [32, 48] x e4m3 [16, 48]^T in bf16, adds");
  EXPECT_EQ(dweight.a.scale, &scales[2]);
  EXPECT_EQ(dweight.b.scale, &scales[0]);
  EXPECT_EQ(cost_of(backward, LinearBackward::Part::kWeight).fp8_flops, 2.0 * N * C * O);
}

TEST_F(Fp8Ops, NormsWriteTheFp8OfQuantise) {
  for (const auto [N, C] : {std::array<int64_t, 2>{1, 1}, {3, 7}, {33, 40}}) {
    const Tensor x = make.normal({N, C}, 3), w = make.normal({C}), b = make.normal({C}),
                 mean = make.empty({N}), rstd = make.empty({N}), dy = make.normal({N, C}),
                 add = make.normal({N, C}, 40), dw = make.zeros({C}), db = make.zeros({C});
    const Tensor y = make.poisoned({N, C}), dx = make.poisoned({N, C});
    LayerNormForward layer{.x = x, .weight = w, .bias = b, .y = y, .mean = mean, .rstd = rstd};
    expect_fp8(layer, &LayerNormForward::y, &LayerNormForward::fp8_y, DType::kE4M3);
    LayerNormBackward layer_back{.dy = dy,
                                 .x = x,
                                 .weight = w,
                                 .mean = mean,
                                 .rstd = rstd,
                                 .dx = dx,
                                 .dweight = dw,
                                 .dbias = db,
                                 .add = add};
    expect_fp8(layer_back, &LayerNormBackward::dx, &LayerNormBackward::fp8_dx, DType::kE5M2);
    RmsNormForward rms{.x = x, .weight = w, .y = y, .rstd = rstd, .epsilon = 1e-5f};
    expect_fp8(rms, &RmsNormForward::y, &RmsNormForward::fp8_y, DType::kE4M3);
    RmsNormBackward rms_back{
        .dy = dy, .x = x, .weight = w, .rstd = rstd, .dx = dx, .dweight = dw, .add = add};
    expect_fp8(rms_back, &RmsNormBackward::dx, &RmsNormBackward::fp8_dx, DType::kE5M2);
  }
}

TEST_F(Fp8Ops, ActivationsWriteTheFp8OfQuantise) {
  for (const auto [N, C, F] : {std::array<int64_t, 3>{1, 2, 16}, {3, 7, 5}, {33, 16, 24}}) {
    const Tensor gate_up = make.normal({N, 2 * F}, 3), dy = make.normal({N, F});
    GatedForward swiglu{.gate_up = gate_up, .y = make.poisoned({N, F})};
    expect_fp8(swiglu, &GatedForward::y, &GatedForward::fp8_y, DType::kE4M3);
    GatedBackward back{.dy = dy, .gate_up = gate_up, .d_gate_up = make.poisoned({N, 2 * F})};
    expect_fp8(back, &GatedBackward::d_gate_up, &GatedBackward::fp8_d_gate_up, DType::kE5M2);
    for (const Activation activation : kActivations) {
      const Tensor x = make.normal({N, C}, 3), w = make.normal({F, C}), v = make.normal({C, F}),
                   u = make.normal({N, F}), dv = make.zeros({C, F}), d = make.normal({N, C}, 4),
                   transposed = make.empty({F, C});
      const Fp8Matrix v8 = quantised(v, DType::kE4M3, transposed);
      LinearForward linear{.x = x,
                           .weight = w,
                           .y = make.poisoned({N, F}),
                           .bias = make.normal({F}, 3),
                           .pre_activation = u,
                           .activation = activation,
                           .fp8_x = quantised(x, DType::kE4M3),
                           .fp8_weight = quantised(w, DType::kE4M3)};
      expect_fp8(linear, &LinearForward::y, &LinearForward::fp8_y, DType::kE4M3);
      LinearBackward linear_back{.dy = d,
                                 .x = dy,
                                 .weight = v,
                                 .dx = make.poisoned({N, F}),
                                 .dweight = dv,
                                 .pre_activation = make.normal({N, F}),
                                 .activation = activation,
                                 .fp8_dy = quantised(d, DType::kE5M2),
                                 .fp8_weight = {transposed, v8.scale}};
      expect_fp8(linear_back, &LinearBackward::dx, &LinearBackward::fp8_dx, DType::kE5M2);
    }
  }
}

TEST_F(Fp8Ops, CrossEntropyWritesTheFp8OfQuantise) {
  for (const auto [N, V, padded] : {std::array<int64_t, 3>{1, 2, 2}, {6, 9, 16}, {33, 61, 64}})
    for (const float scale : {1.0f, 4.0f}) {
      const Tensor targets = make.tokens({N}, V), logits = make.normal({N, padded}, 3);
      for (int64_t n = 1; n < N; n += 3) targets.as<int32_t>()[n] = kNoTarget;
      const CrossEntropy loss{.logits = logits,
                              .targets = targets,
                              .losses = make.poisoned({N}),
                              .vocab_size = V,
                              .want_gradient = true,
                              .gradient_scale = scale == 1 ? Tensor{} : make.scalar(scale)};
      expect_fp8(loss, &CrossEntropy::logits, &CrossEntropy::fp8_dlogits, DType::kE5M2);
    }
}

TEST_F(Fp8Ops, RefuseWhatDoesNotFit) {
  const Tensor x = make.normal({4, 6}), w = make.normal({3, 6}), y = make.empty({4, 3});
  LinearForward forward{.x = x, .weight = w, .y = y, .fp8_x = matrix({4, 6})};
  EXPECT_TRUE(says(refusal_of(cpu, forward), {"linear forward: fp8_weight ", "fp32 [3, 6]"}));
  forward.fp8_weight = matrix({6, 3});
  EXPECT_TRUE(says(refusal_of(cpu, forward), {"linear forward: fp8_weight ", "fp32 [3, 6]"}));
  EXPECT_TRUE(says(refusal_of(cpu, Quantise{.x = x, .format = DType::kBF16, .y = matrix({4, 6})}),
                   {"quantise: format ", "e4m3 or e5m2", "found bf16"}));
  EXPECT_TRUE(says(refusal_of(cpu, Quantise{.x = x, .format = DType::kE4M3, .y = matrix({6, 4})}),
                   {"quantise: y ", "fp32 [4, 6]"}));
  const Fp8Matrix none{.data = {}, .scale = make.scalar(1)};
  EXPECT_TRUE(says(refusal_of(cpu, Quantise{.x = x, .format = DType::kE4M3, .y = none}),
                   {"quantise: y ", "fp32 [4, 6]"}));
  EXPECT_TRUE(says(refusal_of(cpu, Dequantise{.x = matrix({6, 4}), .y = x}), {"dequantise: x ", "[4, 6]"}));
  EXPECT_TRUE(says(refusal_of(cpu, TransposeFp8{.x = x, .y = y}), {"transpose FP8: y ", "[6, 4]"}));
  EXPECT_TRUE(says(refusal_of(cpu, UpdateScales{.amax = make.zeros({3, 2, 2}),
                                                .scale = make.zeros({1, 2, kFp8ScaleStride})}),
                   {"update scales: amax ", "[3, 1, 2]"}));
}

TEST_F(Fp8Ops, RefuseFp8ThatDoNotFit) {
  const auto expect_refusal = [](const std::string& found, std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(says(found, words));
  };
  GatedForward swiglu{.gate_up = make.normal({4, 6}), .y = make.empty({4, 3})};
  swiglu.fp8_y = {.y = matrix({4, 6}), .amax = make.zeros({1})};
  expect_refusal(refusal_of(cpu, swiglu), {"gated forward: fp8_y ", "fp32 [4, 3] on cpu"});
  swiglu.fp8_y = {.y = matrix({4, 3}), .amax = {}};
  expect_refusal(refusal_of(cpu, swiglu), {"gated forward: ", "amax", "fp32 [1]"});
  swiglu.fp8_y = {.y = {.data = make.empty({4, 3}), .scale = {}}, .amax = make.zeros({1})};
  expect_refusal(refusal_of(cpu, swiglu), {"gated forward: ", "scale", "fp32 [1]"});
  const Tensor x = make.normal({4, 6}), w = make.normal({3, 6});
  LinearForward linear{.x = x, .weight = w, .y = make.empty({4, 3})};
  linear.fp8_y = {.y = matrix({4, 3}), .amax = make.zeros({1})};
  expect_refusal(refusal_of(cpu, linear), {"fp8_y needs fp8_x", "pre_activation"});
  CrossEntropy loss{.logits = make.normal({4, 6}),
                    .targets = make.tokens({4}, 6),
                    .losses = make.empty({4}),
                    .vocab_size = 6,
                    .want_gradient = false,
                    .fp8_dlogits = {.y = matrix({4, 6}), .amax = make.zeros({1})}};
  expect_refusal(refusal_of(cpu, loss), {"cross entropy: fp8_dlogits needs want_gradient"});
  loss.want_gradient = true, loss.fp8_dlogits.y = matrix({4, 5});
  expect_refusal(refusal_of(cpu, loss), {"cross entropy: fp8_dlogits ", "fp32 [4, 6] on cpu"});
  // On a GPU: gradients in e5m2, beside a result in bf16
  const auto on_gpu = [](DType dtype, Shape shape) { return Tensor{nullptr, dtype, shape, Device::kCuda}; };
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const DType format : kFormats) {
      GatedBackward back{.dy = on_gpu(dtype, {4, 8}),
                         .gate_up = on_gpu(dtype, {4, 16}),
                         .d_gate_up = on_gpu(dtype, {4, 16}),
                         .fp8_d_gate_up = {.y = {on_gpu(format, {4, 16}), on_gpu(DType::kF32, {1})},
                                           .amax = on_gpu(DType::kF32, {1})}};
      std::string refusal;
      try {
        back.check_on(Device::kCuda);
      } catch (const Error& error) {
        refusal = error.what();
      }
      if (format == DType::kE4M3)
        expect_refusal(refusal, {"gated backward: fp8_d_gate_up ", "e5m2 [4, 16] on cuda"});
      else if (dtype == DType::kF32)
        expect_refusal(refusal, {"gated backward: fp8_d_gate_up ", "result in bf16"});
      else
        EXPECT_EQ(refusal, "");
    }
}

}  // namespace
}  // namespace tessera::testing
