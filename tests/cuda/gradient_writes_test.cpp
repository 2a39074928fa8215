// Gradients of parameters on CUDA, in the place of what was there: the bits that zeros would have got.
#include "tests/cuda/twin.h"

namespace tessera {
namespace {

class CudaGradientWrites : public CudaTest {
 protected:
  void expect_overwritten(DType dtype, const std::vector<Shape>& shapes,
                          const std::function<void(const std::vector<Tensor>&, bool)>& op) {
    std::vector<Tensor> zeros, poisoned;
    for (const Shape& shape : shapes) {
      zeros.push_back(with_values(dtype, shape, [](int64_t) { return 0.0f; }).cuda);
      poisoned.push_back(output(dtype, shape).cuda);
    }
    op(zeros, true);
    op(poisoned, false);
    for (size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(bytes_of(poisoned[i]), bytes_of(zeros[i])) << i;
  }
};

TEST_F(CudaGradientWrites, AreThoseAddedToZeros) {
  for (const DType dtype : kReal)
    for (const auto& [N, C, O] : {std::array<int64_t, 3>{130, 768, 2304}, {65, 104, 40}, {1000, 2048, 64}}) {
      SCOPED_TRACE(fmt::format("{} N {} C {} O {}", name_of(dtype), N, C, O));
      const Tensor x = input(dtype, {N, C}).cuda, w = input(dtype, {O, C}).cuda,
                   dy = input(dtype, {N, O}).cuda, u = input(dtype, {N, C}).cuda,
                   dx = output(dtype, {N, C}).cuda, gain = input(dtype, {C}).cuda,
                   dn = input(dtype, {N, C}).cuda, mean = input(DType::kF32, {N}).cuda,
                   rstd = input(DType::kF32, {N}).cuda;
      expect_overwritten(dtype, {{O, C}, {O}, {C}}, [&](const std::vector<Tensor>& g, bool accumulate) {
        cuda().run(LinearBackward{.dy = dy,
                                  .x = x,
                                  .weight = w,
                                  .dx = dx,
                                  .dweight = g[0],
                                  .dbias = g[1],
                                  .dx_sum = g[2],
                                  .pre_activation = u,
                                  .accumulate = accumulate});
      });
      expect_overwritten(dtype, {{C}, {C}, {C}}, [&](const std::vector<Tensor>& g, bool accumulate) {
        cuda().run(LayerNormBackward{.dy = dn,
                                     .x = x,
                                     .weight = gain,
                                     .mean = mean,
                                     .rstd = rstd,
                                     .dx = dx,
                                     .dweight = g[0],
                                     .dbias = g[1],
                                     .dx_sum = g[2],
                                     .accumulate = accumulate});
      });
      expect_overwritten(dtype, {{C}, {C}}, [&](const std::vector<Tensor>& g, bool accumulate) {
        cuda().run(RmsNormBackward{.dy = dn,
                                   .x = x,
                                   .weight = gain,
                                   .rstd = rstd,
                                   .dx = dx,
                                   .dweight = g[0],
                                   .dx_sum = g[1],
                                   .accumulate = accumulate});
      });
      const int64_t r = 8;
      const Tensor a = input(dtype, {r, C}).cuda, b = input(dtype, {O, r}).cuda,
                   lora_u = input(dtype, {N, r}).cuda, own_u = output(dtype, {N, r}).cuda;
      expect_overwritten(dtype, {{r, C}, {O, r}}, [&](const std::vector<Tensor>& g, bool accumulate) {
        cuda().run(Copy{lora_u, own_u});
        cuda().run(LoraBackward{.dy = dy,
                                .x = x,
                                .a = a,
                                .b = b,
                                .parts = {O, 0, 0},
                                .scale = 0.5f,
                                .u = own_u,
                                .dx = dx,
                                .da = g[0],
                                .db = g[1],
                                .accumulate = accumulate});
      });
    }
}

TEST_F(CudaGradientWrites, OfQkNormAreThoseAddedToZeros) {
  const int64_t B = 3, T = 33, H = 5, D = 64;
  for (const DType dtype : kReal) {
    const Tensor x = input(dtype, {B, T, H, D}).cuda, dy = input(dtype, {B, T, H, D}).cuda,
                 dx = output(dtype, {B, T, H, D}).cuda, w = input(dtype, {D}).cuda,
                 rstd = input(DType::kF32, {B * T, H}).cuda, angles = input(DType::kF32, {T, D / 2, 2}).cuda;
    expect_overwritten(dtype, {{D}, {D}}, [&](const std::vector<Tensor>& g, bool accumulate) {
      cuda().run(RotaryBackward{.dy = {dy, 0, H},
                                .dx = {dx, 0, H},
                                .query_heads = 3,
                                .angles = angles,
                                .x = {x, 0, H},
                                .q_weight = w,
                                .k_weight = w,
                                .rstd = rstd,
                                .dq_weight = g[0],
                                .dk_weight = g[1],
                                .accumulate = accumulate});
    });
    const Tensor all = input(dtype, {H * D}).cuda, of_rows = input(DType::kF32, {B * T}).cuda;
    expect_overwritten(dtype, {{H * D}}, [&](const std::vector<Tensor>& g, bool accumulate) {
      cuda().run(HeadsNormBackward{.dy = {dy, 0, H},
                                   .x = {x, 0, H},
                                   .weight = all,
                                   .rstd = of_rows,
                                   .dx = {dx, 0, H},
                                   .dweight = g[0],
                                   .accumulate = accumulate});
    });
  }
}

// The sum of the columns is of dy's first outputs alone, in packs and without.
TEST_F(CudaGradientWrites, OfABiasOfTheFirstOutputs) {
  for (const DType dtype : kReal)
    for (const auto& [N, O, first] : {std::array<int64_t, 3>{1000, 192, 64}, {129, 2304, 768}, {65, 33, 7}}) {
      const int64_t C = 16;
      const Twin x = input(dtype, {N, C}), w = input(dtype, {O, C}), dy = input(dtype, {N, O}),
                 dx = output(dtype, {N, C}), dw = input(dtype, {O, C}), db = input(dtype, {first});
      run_on_both({dx, dw, db}, [&](auto on) {
        return LinearBackward{
            .dy = on(dy), .x = on(x), .weight = on(w), .dx = on(dx), .dweight = on(dw), .dbias = on(db)};
      });
      expect_same(db, "dbias");
    }
}

}  // namespace
}  // namespace tessera
