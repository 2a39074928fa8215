// RandomNormal on the CPU: its values are those of Philox, and a slice has those of the whole.
#include <algorithm>

#include "tests/data/support.h"
#include "tests/support.h"

namespace tessera::testing {
namespace {

TEST(RandomNormal, ValuesAreThoseOfTheGenerator) {
  const CpuStream cpu;
  HostTensors make;
  for (const int64_t count : {1, 7, 1000}) {
    const Tensor y = make.poisoned({count});
    cpu.run(RandomNormal{.y = y, .deviation = 0.02, .seed = 5, .stream = 3});
    const Philox random(5, 3);
    for (int64_t i = 0; i < count; ++i)
      EXPECT_EQ(floats(y)[i], static_cast<float>(0.02 * random.normal(static_cast<uint64_t>(i))));
  }
}

TEST(RandomNormal, ASliceHasTheValuesOfTheWhole) {
  const CpuStream cpu;
  HostTensors make;
  const Tensor whole = make.poisoned({40, 25}), parts = make.poisoned({1000});
  const uint64_t seed = uint64_t{1} << 40;
  cpu.run(RandomNormal{.y = whole, .deviation = 3, .seed = seed, .stream = 1});
  for (const int64_t first : {0, 333, 666})
    cpu.run(RandomNormal{.y = parts.rows(first, std::min<int64_t>(333 + first / 666, 1000 - first)),
                         .deviation = 3,
                         .seed = seed,
                         .stream = 1,
                         .first = first});
  EXPECT_TRUE(std::ranges::equal(floats(parts), floats(whole)));
}

TEST(RandomNormal, WrongArgumentsAreRefused) {
  const CpuStream cpu;
  HostTensors make;
  const RandomNormal right{.y = make.zeros({8}), .deviation = 1, .seed = 1, .stream = 1};
  const auto refused = [&](const auto& change, const char* word) {
    RandomNormal wrong = right;
    change(wrong);
    expect_error([&] { cpu.run(wrong); }, {"random normal", word});
  };
  refused([](RandomNormal& a) { a.deviation = 0; }, "deviation");
  refused([](RandomNormal& a) { a.first = -1; }, "first");
  refused([&](RandomNormal& a) { a.y = make.empty({8}, DType::kI32); }, "y must be");
  refused([&](RandomNormal& a) { a.low = make.empty({8}, DType::kU16); }, "low is for a bf16 y alone");
  refused([](RandomNormal& a) { a.y = {}; }, "y must be");
}

}  // namespace
}  // namespace tessera::testing
