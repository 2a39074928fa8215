// RoundNf4 and WidenNf4 on the CPU
#include <limits>

#include "tests/nf4_reference.h"

namespace tessera::testing {
namespace {

TEST(Nf4, ValuesAndBytesAreThoseOfBitsandbytes) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  expect_nf4_of_bitsandbytes(Stream(*be), DType::kF32);
}

TEST(Nf4, TakesTheNearestValue) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{1, 64}, {7, 192}, {33, 320}})
    expect_nf4_by_definition(Stream(*be), rows, columns);
}

TEST(Nf4, EveryValueHasItsCodeAndABoundGoesDown) {
  for (uint32_t code = 0; code < 16; ++code) {
    EXPECT_EQ(nf4_code(nf4_value(code)), code);
    if (code == 15) continue;
    const float bound = (nf4_value(code) + nf4_value(code + 1)) / 2;
    EXPECT_EQ(nf4_code(bound), code);
    EXPECT_EQ(nf4_code(std::nextafter(bound, 2.0f)), code + 1);
  }
  EXPECT_EQ(nf4_inverse(0), 1 / 1e-38f);
}

}  // namespace
}  // namespace tessera::testing
