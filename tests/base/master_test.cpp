// A master as a bf16 weight and its own lower bits: the rounding is to nearest, and can be undone.
#include "kernels/base/master.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "kernels/base/bf16.h"
#include "kernels/base/text.h"

namespace tessera {
namespace {

bool is_nan(uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

TEST(Master, EveryOneComesBack) {
  int64_t wrong = 0;
  for (uint64_t upper = 0; upper < 1 << 16; ++upper) {
    for (uint32_t low = 0; low < 1 << 16; ++low) {
      const uint32_t bits = static_cast<uint32_t>(upper << 16) | low, back = master_bits(split_master(bits));
      wrong += is_nan(bits) ? !is_nan(back) : back != bits;
    }
  }
  EXPECT_EQ(wrong, 0);
}

// Against distances in fp64, in which those between fp32 numbers are exact. The number beyond the largest
// bf16 counts as 2^128, as for rounding to nearest even.
TEST(Master, TheWeightIsTheNearest) {
  const auto value = [](uint32_t upper) {  // of a bf16 that is not negative
    return upper == 0x7f80 ? 0x1p128 : static_cast<double>(float_from_bf16(static_cast<uint16_t>(upper)));
  };
  int ties = 0;
  for (uint32_t upper = 0; upper < 0x7f80; ++upper)
    for (const uint32_t low : {0x0u, 0x1u, 0x4321u, 0x7fffu, 0x8000u, 0x8001u, 0xc0deu, 0xffffu}) {
      const uint32_t bits = upper << 16 | low;
      const double exact = static_cast<double>(std::bit_cast<float>(bits)), below = exact - value(upper),
                   above = value(upper + 1) - exact;
      const uint32_t nearest = above <= below ? upper + 1 : upper;  // of two that are as near the larger
      ties += above == below;
      for (const uint32_t sign : {0u, 0x8000u}) {
        const SplitMaster found = split_master(sign << 16 | bits);
        ASSERT_EQ(found.weight, sign | nearest) << std::hex << bits;
        ASSERT_EQ(found.low, low);
        if (above != below) {
          ASSERT_EQ(found.weight, bf16_from_float(std::bit_cast<float>(sign << 16 | bits)))
              << std::hex << bits;
        }
      }
    }
  EXPECT_EQ(ties, 0x7f80);
}

// What is not finite stays so in the weight, and does not come from what is zero.
TEST(Master, WhatIsNotFiniteStaysSo) {
  for (const uint32_t sign : {0u, 0x8000'0000u}) {
    EXPECT_EQ(split_master(sign | 0x7f80'0000u).weight, sign >> 16 | 0x7f80u) << "infinity";
    EXPECT_EQ(split_master(sign).weight, sign >> 16) << "zero";
    for (uint32_t payload = 1; payload < 1 << 23;
         payload += payload < 1 << 16 || payload > 0x7e'0000 ? 1 : 997) {
      const uint32_t bits = sign | 0x7f80'0000u | payload;
      const SplitMaster found = split_master(bits);
      ASSERT_TRUE(is_nan(static_cast<uint32_t>(found.weight) << 16)) << std::hex << bits;
      ASSERT_EQ(found.weight >> 15, sign >> 31);
      const SplitMaster again = split_master(master_bits(found));  // saved and loaded
      ASSERT_EQ(again.weight, found.weight);
      ASSERT_EQ(again.low, found.low);
    }
  }
  for (uint32_t upper = 0; upper < 1 << 16; ++upper)
    if (const auto weight = static_cast<uint16_t>(upper); (weight & 0x7fff) > 0x7f80) {
      for (const uint16_t low : {0, 1, 0x8000, 0xffff}) {  // of a weight that something else made NaN
        ASSERT_TRUE((master_bits({weight, low}) & 0x7f80'0000u) == 0x7f80'0000u);
      }
    }
}

}  // namespace
}  // namespace tessera
