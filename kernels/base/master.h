// A master is the fp32 value of a bf16 weight, which the optimizer steps on. It is kept as the weight and the
// master's own lower 16 bits: 4 bytes for both.
//
// That needs a rounding that can be undone. Rounding to nearest even cannot: of a tie, lower bits of 0x8000,
// the weight does not tell whether it went up or down. So a tie goes away from zero. That is to add half a
// unit in the last place and to cut:
//   weight = (bits + 0x8000) >> 16,   low = bits & 0xffff
// It went up where low >= 0x8000, where low as a signed number is negative: low is what the weight lacks, and
//   bits = (weight << 16) + int16(low)
// Both roundings are equally near to the master, and differ at ties alone.
//
// A finite master whose weight is infinite is given back as well, and so is an infinite one. A NaN is made
// quiet, and its lower bits become 0: adding half a unit to its largest would wrap to a zero.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace tessera {

struct SplitMaster {
  uint16_t weight;  // the bits of a bf16
  uint16_t low;     // the lower 16 of the master
};

TESSERA_HOST_DEVICE inline SplitMaster split_master(uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7f800000u, kQuiet = 0x40u;
  if ((bits & 0x7fffffffu) > kInfinity) return {static_cast<uint16_t>(bits >> 16 | kQuiet), 0};
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16), static_cast<uint16_t>(bits)};
}

TESSERA_HOST_DEVICE inline uint32_t master_bits(SplitMaster master) {
  return (static_cast<uint32_t>(master.weight) << 16) +
         static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(master.low)));
}

}  // namespace tessera
