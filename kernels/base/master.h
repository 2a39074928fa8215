// A master is the fp32 value of a bf16 weight, which the optimizer steps on. It is kept as the weight and the
// master's own lower 16 bits: 4 bytes for both.
//
// That needs a rounding that can be undone, which rounding to nearest even is not: after a tie (lower bits of
// 0x8000) the weight does not tell whether it was rounded up or down. So here a tie is rounded away from
// zero: half a unit in the last place is added, and the lower bits are cut off:
//   weight = (bits + 0x8000) >> 16,   low = bits & 0xffff
// It was rounded up if low >= 0x8000, that is, if low as a signed number is negative. So low is what the
// weight lacks, and
//   bits = (weight << 16) + int16(low)
// Both roundings are equally near to the master, and differ only at ties.
//
// The bits of a finite master whose weight is infinite are recovered as well, and those of an infinite one. A
// NaN becomes a quiet NaN whose lower bits are 0: adding half a unit to the largest NaN would wrap around to
// zero.
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
