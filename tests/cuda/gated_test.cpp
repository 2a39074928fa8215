// The gates of gated MLPs on CUDA against the CPU backend.
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

using CudaGated = CudaTest;

TEST_F(CudaGated, IsThatOfTheCpu) {
  for (const DType dtype : kReal) {
    std::vector<std::pair<int64_t, int64_t>> sizes = {{1, 8},    {2, 64},     {63, 104},   {129, 1536},
                                                      {7, 2736}, {333, 4864}, {20001, 16}, {3, 11008}};
    if (dtype == DType::kF32) sizes.insert(sizes.end(), {{3, 4}, {65, 100}});
    for (const auto& [N, F] : sizes) {
      SCOPED_TRACE(fmt::format("{} N {} F {}", name_of(dtype), N, F));
      for (const Gate gate : kAllGates) {
        const Twin gate_up = input(dtype, {N, 2 * F}, 5), y = output(dtype, {N, F});
        run_on_both({y},
                    [&](auto on) { return GatedForward{.gate_up = on(gate_up), .y = on(y), .gate = gate}; });
        expect_same(y, "y");

        const Twin dy = input(dtype, {N, F}), apart = output(dtype, {N, 2 * F});
        for (const bool in_place : {false, true}) {
          const Twin d_gate_up = in_place ? gate_up : apart;
          run_on_both({d_gate_up}, [&](auto on) {
            return GatedBackward{
                .dy = on(dy), .gate_up = on(gate_up), .d_gate_up = on(d_gate_up), .gate = gate};
          });
          expect_same(d_gate_up, "d_gate_up");
        }
        EXPECT_EQ(bytes_of(gate_up.cuda), bytes_of(apart.cuda)) << "in place";
      }
    }
  }
}

// Gates whose exponential overflows
TEST_F(CudaGated, HoldsAtTheEnds) {
  constexpr float kGates[] = {-1e4f, -100, -88.8f, -88, -87, -20, -1, 0, 1, 20, 87, 88, 88.8f, 100, 1e4f, 3};
  constexpr int64_t F = std::size(kGates);
  for (const DType dtype : kReal)
    for (const Gate gate : kAllGates) {
      const Twin gate_up = with_values(dtype, {1, 2 * F}, [&](int64_t i) { return i < F ? kGates[i] : 1; }),
                 dy = with_values(dtype, {1, F}, [](int64_t) { return 1.0f; }), y = output(dtype, {1, F}),
                 d_gate_up = output(dtype, {1, 2 * F});
      run_on_both({y},
                  [&](auto on) { return GatedForward{.gate_up = on(gate_up), .y = on(y), .gate = gate}; });
      run_on_both({d_gate_up}, [&](auto on) {
        return GatedBackward{.dy = on(dy), .gate_up = on(gate_up), .d_gate_up = on(d_gate_up), .gate = gate};
      });
      const double relative = tolerance::of_operation(dtype);
      const auto expect_close = [&](const Twin& twin, const char* what) {
        const std::vector<float> got = floats_of(twin.cuda);
        for (size_t i = 0; i < got.size(); ++i) {
          const double want = twin.cpu.as<float>()[i];
          EXPECT_NEAR(got[i], want, relative * (1 + std::abs(want)))
              << name_of(dtype) << " " << what << " " << i;
        }
      };
      expect_close(y, "y");
      expect_close(d_gate_up, "d_gate_up");
    }
  const Twin nan = with_values(DType::kF32, {1, 8}, [](int64_t) { return NAN; }),
             y = with_values(DType::kF32, {1, 4}, [](int64_t) { return 0.0f; });
  cuda().run(GatedForward{.gate_up = nan.cuda, .y = y.cuda});
  for (const float value : floats_of(y.cuda)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(CudaGated, RefusesWhatItCannotServe) {
  const auto refusal = [&](DType dtype, int64_t F) {
    const Twin gate_up = input(dtype, {3, 2 * F}), y = output(dtype, {3, F});
    return message_of([&] { cuda().run(GatedForward{.gate_up = gate_up.cuda, .y = y.cuda}); });
  };
  EXPECT_NE(refusal(DType::kBF16, 12).find("y must be a multiple of 8"), std::string::npos);
  EXPECT_NE(refusal(DType::kF32, 6).find("y must be a multiple of 4"), std::string::npos);
}

}  // namespace
}  // namespace tessera
