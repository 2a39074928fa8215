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
        const Twin y = output(dtype, {count});
        const auto args = [&](const Tensor& to) {
          return RandomNormal{.y = to, .deviation = 0.02, .seed = 42, .stream = 7, .first = first};
        };
        cpu().run(args(y.cpu));
        cuda().run(args(y.cuda));
        const std::vector<char> found = bytes_of(y.cuda);
        int64_t wrong = 0;
        for (int64_t i = 0; i < count; ++i) {
          const float value = y.cpu.as<float>()[i];
          if (dtype == DType::kBF16) {
            const uint16_t rounded = bf16_from_float(value);
            wrong += std::memcmp(&rounded, found.data() + 2 * i, 2) != 0;
          } else {
            wrong += std::memcmp(&value, found.data() + 4 * i, 4) != 0;
          }
        }
        EXPECT_EQ(wrong, 0);
      }
    }
}

TEST_F(CudaOps, InitialWeightsHaveTheCpusBits) {
  for (const DType dtype : kReal) testing::expect_initial_weights(traits(), dtype);
}

}  // namespace
}  // namespace tessera
