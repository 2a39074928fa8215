// RandomNormal on CUDA: the bits of the CPU, those too that both devices' libraries round differently.
#include "tests/cuda/twin.h"
#include "tests/initial_weights.h"

namespace tessera {
namespace {

using CudaOps = CudaTest;

// Values of two launches, some 17 of which the host computes; the emulated GPU has the CPU's library.
int64_t many(const DeviceTraits& traits) {
  return traits.name == std::string("Emulated GPU") ? 100'000 : 70'000'000;
}

TEST_F(CudaOps, RandomNormalHasTheCpusBits) {
  for (const DType dtype : kReal)
    for (const int64_t count : {int64_t{1}, int64_t{255}, int64_t{4099}, many(traits())}) {
      SCOPED_TRACE(fmt::format("{}, {} values", name_of(dtype), count));
      for (const int64_t first : {int64_t{0}, int64_t{1} << 33}) {
        const Twin y = output(DType::kF32, {count});
        const auto args = [&](const Tensor& to, const Tensor& low) {
          return RandomNormal{
              .y = to, .low = low, .deviation = 0.02, .seed = 42, .stream = 7, .first = first};
        };
        cpu().run(args(y.cpu, {}));
        if (dtype == DType::kF32) {
          cuda().run(args(y.cuda, {}));
        } else {  // masters
          const Twin weights = output(dtype, {count}), alone = output(dtype, {count}),
                     low = output(DType::kU16, {count});
          cuda().run(args(weights.cuda, low.cuda)), cuda().run(args(alone.cuda, {}));
          EXPECT_EQ(bytes_of(alone.cuda), bytes_of(weights.cuda));
          cuda().run(JoinMasters{.weights = weights.cuda, .low = low.cuda, .masters = y.cuda});
        }
        EXPECT_EQ(std::memcmp(bytes_of(y.cuda).data(), y.cpu.data, y.cpu.bytes()), 0);
      }
    }
}

TEST_F(CudaOps, InitialWeightsHaveTheCpusBits) {
  for (const DType dtype : kReal) testing::expect_initial_weights(traits(), dtype);
}

}  // namespace
}  // namespace tessera
