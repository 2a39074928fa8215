// The rotary embedding on CUDA, with and without QK norm and positions, against the CPU backend.
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

struct RotarySize {
  int64_t B, T, query_heads, key_heads, D, rotated = D;  // channels of a head

  int64_t heads() const { return query_heads + key_heads; }
  int64_t rows() const { return B * T; }
};
// Head dims whose halves are packs, and others, down to 2; heads in numbers that groups of 2 and 4 do not
// divide. The last of each kind has more work than the device holds blocks. Then shares of heads, in packs
// and not.
constexpr RotarySize kRotarySizes[] = {
    {1, 1, 1, 1, 64},       {2, 65, 9, 3, 64},      {1, 127, 14, 2, 64},     {3, 33, 16, 8, 128},
    {2, 7, 5, 1, 80},       {1, 63, 3, 3, 96},      {2, 9, 4, 2, 256},       {1, 129, 2, 1, 16},
    {1, 5, 3, 1, 2},        {2, 31, 2, 2, 6},       {1, 65, 7, 1, 24},       {2, 3, 3, 2, 250},
    {1, 17, 4, 0, 32},      {1, 17, 0, 4, 32},      {1, 1500, 16, 8, 128},   {2, 65, 9, 3, 64, 32},
    {2, 33, 6, 6, 128, 64}, {2, 7, 5, 1, 128, 96},  {1, 63, 3, 3, 96, 72},   {1, 17, 4, 2, 64, 8},
    {2, 31, 2, 2, 6, 2},    {2, 9, 4, 2, 256, 128}, {1, 1500, 6, 6, 128, 64}};

constexpr float kRotaryEpsilon = 1e-6f;

std::string text_of(DType dtype, const RotarySize& s) {
  return fmt::format("{} B {} T {} H {} K {} D {}, {} rotated", name_of(dtype), s.B, s.T, s.query_heads,
                     s.key_heads, s.D, s.rotated);
}

class CudaRotary : public CudaTest {
 protected:
  // As Llama has them, with two positions more than tokens, scaled by 1.2 so that a transpose is no inverse
  Twin angles_of(const RotarySize& s) {
    const int64_t pairs = s.rotated / 2;
    return with_values(DType::kF32, {s.T + 2, pairs, 2}, [&](int64_t i) {
      const double power = static_cast<double>(i / 2 % pairs) / static_cast<double>(pairs),
                   angle = static_cast<double>(i / 2 / pairs) * std::pow(1e4, -power);
      return static_cast<float>(1.2 * (i % 2 ? std::sin(angle) : std::cos(angle)));
    });
  }

  // A tensor for `before` other heads, those of `s` and two more. They are filled even where they are only
  // written, so that the other heads can be compared too.
  Twin heads(DType dtype, const RotarySize& s, int64_t before) {
    return input(dtype, {s.B, s.T, before + s.heads() + 2, s.D});
  }
};

TEST_F(CudaRotary, IsThatOfTheCpu) {
  for (const DType dtype : kReal)
    for (const RotarySize& s : kRotarySizes) {
      SCOPED_TRACE(text_of(dtype, s));
      const Twin angles = angles_of(s), x = heads(dtype, s, 1), y = heads(dtype, s, 0);
      const auto forward = [&](const Twin& from, int64_t first, const Twin& to, int64_t to_first) {
        run_on_both({to}, [&](auto on) {
          return RotaryForward{.x = {on(from), first, s.heads()},
                               .y = {on(to), to_first, s.heads()},
                               .query_heads = s.query_heads,
                               .angles = on(angles)};
        });
        expect_same(to, "y");
      };
      const auto backward = [&](const Twin& from, int64_t first, const Twin& to, int64_t to_first) {
        run_on_both({to}, [&](auto on) {
          return RotaryBackward{.dy = {on(from), first, s.heads()},
                                .dx = {on(to), to_first, s.heads()},
                                .query_heads = s.query_heads,
                                .angles = on(angles)};
        });
        expect_same(to, "dx");
      };
      forward(x, 1, y, 0);
      forward(x, 1, x, 1);
      const Twin dy = heads(dtype, s, 0), dx = heads(dtype, s, 3);
      backward(dy, 0, dx, 3);
      backward(dy, 0, dy, 0);
    }
}

TEST_F(CudaRotary, WithQkNormIsThatOfTheCpu) {
  for (const DType dtype : kReal)
    for (const RotarySize& s : kRotarySizes) {
      SCOPED_TRACE(text_of(dtype, s));
      const Twin angles = angles_of(s), x = heads(dtype, s, 1), y = heads(dtype, s, 0),
                 q_weight = input(dtype, {s.D}, 0.5f, 1), k_weight = input(dtype, {s.D}, 0.5f, 1),
                 rstd = output(DType::kF32, {s.rows(), s.heads()});
      run_on_both({y, rstd}, [&](auto on) {
        return RotaryForward{.x = {on(x), 1, s.heads()},
                             .y = {on(y), 0, s.heads()},
                             .query_heads = s.query_heads,
                             .angles = on(angles),
                             .q_weight = on(q_weight),
                             .k_weight = on(k_weight),
                             .epsilon = kRotaryEpsilon,
                             .offset = 1,
                             .rstd = on(rstd)};
      });
      expect_same(y, "y");
      expect_same(rstd, "rstd");

      const Twin dy = heads(dtype, s, 0), apart = heads(dtype, s, 3), dq_weight = input(dtype, {s.D}, 10),
                 dk_weight = input(dtype, {s.D}, 10);
      for (const bool in_place : {false, true}) {
        SCOPED_TRACE(in_place ? "in place" : "apart");
        const Twin dx = in_place ? dy : apart;
        run_on_both({dx, dq_weight, dk_weight}, [&](auto on) {
          return RotaryBackward{.dy = {on(dy), 0, s.heads()},
                                .dx = {on(dx), in_place ? 0 : 3, s.heads()},
                                .query_heads = s.query_heads,
                                .angles = on(angles),
                                .x = {on(x), 1, s.heads()},
                                .q_weight = on(q_weight),
                                .k_weight = on(k_weight),
                                .rstd = on(rstd),
                                .offset = 1,
                                .dq_weight = on(dq_weight),
                                .dk_weight = on(dk_weight)};
        });
        expect_same(dx, "dx");
        expect_same(dq_weight, "dq_weight", 1 + in_place);  // added to twice by then
        expect_same(dk_weight, "dk_weight", 1 + in_place);
      }
    }
}

// In a layout of packs, in one of single pairs, and with more work than the device holds blocks
TEST_F(CudaRotary, PositionsRestartWithEveryDocument) {
  constexpr RotarySize kCases[] = {{3, 65, 9, 3, 64}, {2, 31, 2, 2, 6}, {1, 1500, 16, 8, 128}};
  for (const DType dtype : kReal)
    for (const RotarySize& s : kCases) {
      SCOPED_TRACE(text_of(dtype, s));
      const Twin angles = angles_of(s), positions = random_positions(s.B, s.T, 7), x = heads(dtype, s, 1),
                 y = heads(dtype, s, 0), dy = heads(dtype, s, 0), dx = heads(dtype, s, 3),
                 q_weight = input(dtype, {s.D}, 0.5f, 1), k_weight = input(dtype, {s.D}, 0.5f, 1),
                 rstd = output(DType::kF32, {s.rows(), s.heads()}), dq_weight = input(dtype, {s.D}, 10),
                 dk_weight = input(dtype, {s.D}, 10);
      run_on_both({y}, [&](auto on) {
        return RotaryForward{.x = {on(x), 1, s.heads()},
                             .y = {on(y), 0, s.heads()},
                             .query_heads = s.query_heads,
                             .angles = on(angles),
                             .positions = on(positions)};
      });
      expect_same(y, "y");
      run_on_both({dx}, [&](auto on) {
        return RotaryBackward{.dy = {on(dy), 0, s.heads()},
                              .dx = {on(dx), 3, s.heads()},
                              .query_heads = s.query_heads,
                              .angles = on(angles),
                              .positions = on(positions)};
      });
      expect_same(dx, "dx");
      run_on_both({y, rstd}, [&](auto on) {
        return RotaryForward{.x = {on(x), 1, s.heads()},
                             .y = {on(y), 0, s.heads()},
                             .query_heads = s.query_heads,
                             .angles = on(angles),
                             .q_weight = on(q_weight),
                             .k_weight = on(k_weight),
                             .epsilon = kRotaryEpsilon,
                             .rstd = on(rstd),
                             .positions = on(positions)};
      });
      expect_same(y, "y with QK norm");
      run_on_both({dx, dq_weight, dk_weight}, [&](auto on) {
        return RotaryBackward{.dy = {on(dy), 0, s.heads()},
                              .dx = {on(dx), 3, s.heads()},
                              .query_heads = s.query_heads,
                              .angles = on(angles),
                              .x = {on(x), 1, s.heads()},
                              .q_weight = on(q_weight),
                              .k_weight = on(k_weight),
                              .rstd = on(rstd),
                              .dq_weight = on(dq_weight),
                              .dk_weight = on(dk_weight),
                              .positions = on(positions)};
      });
      expect_same(dx, "dx with QK norm");
      expect_same(dq_weight, "dq_weight");
      expect_same(dk_weight, "dk_weight");
    }
}

// A tensor that begins at no multiple of 16 bytes takes single pairs instead of packs.
TEST_F(CudaRotary, TakesTensorsThatAreNotAligned) {
  const RotarySize s{2, 33, 3, 1, 64};
  const auto shifted = [&](const Twin& longer) {
    const auto from = [&](const Tensor& t) {
      return Tensor{t.as<char>() + size_of(t.dtype), t.dtype, {s.B, s.T, s.heads(), s.D}, t.device};
    };
    return Twin{from(longer.cpu), from(longer.cuda)};
  };
  for (const DType dtype : kReal) {
    const int64_t count = s.rows() * s.heads() * s.D;
    const Twin angles = angles_of(s), x = shifted(input(dtype, {count + 1})),
               y = shifted(input(dtype, {count + 1}));
    run_on_both({y}, [&](auto on) {
      return RotaryForward{.x = {on(x), 0, s.heads()},
                           .y = {on(y), 0, s.heads()},
                           .query_heads = s.query_heads,
                           .angles = on(angles)};
    });
    expect_same(y, "y");
  }
}

TEST_F(CudaRotary, InPlaceHasTheSameBits) {
  for (const DType dtype : kReal)
    for (const RotarySize& s : kRotarySizes) {
      const Twin angles = angles_of(s), x = input(dtype, {s.B, s.T, s.heads(), s.D}),
                 y = output(dtype, x.cuda.shape);
      const auto forward = [&](const Tensor& to) {
        cuda().run(RotaryForward{.x = {x.cuda, 0, s.heads()},
                                 .y = {to, 0, s.heads()},
                                 .query_heads = s.query_heads,
                                 .angles = angles.cuda});
      };
      forward(y.cuda);
      forward(x.cuda);
      EXPECT_EQ(bytes_of(x.cuda), bytes_of(y.cuda)) << name_of(dtype) << " D " << s.D;
    }
}

TEST_F(CudaRotary, RefusesWhatItCannotServe) {
  const RotarySize s{1, 3, 2, 1, 258};
  const Twin angles = angles_of(s), x = input(DType::kBF16, {s.B, s.T, s.heads(), s.D});
  const Heads heads{x.cuda, 0, s.heads()};
  const std::string large = message_of(
      [&] { cuda().run(RotaryForward{.x = heads, .y = heads, .query_heads = 2, .angles = angles.cuda}); });
  EXPECT_NE(large.find("head dims up to 256, found 258"), std::string::npos) << large;
  EXPECT_NE(message_of([&] {
              cuda().run(RotaryForward{.x = heads, .y = heads, .query_heads = 2, .angles = angles.cpu});
            }).find("fp32 [5, 129, 2] on cuda"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
