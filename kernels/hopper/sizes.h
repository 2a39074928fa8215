// Sizes that the hardware of compute capability 9.0 sets. Plain C++.
#pragma once

namespace tessera::hopper {

inline constexpr int kWarpgroup = 128;  // threads; wgmma and setmaxnreg are theirs
inline constexpr int kWarpsPerGroup = kWarpgroup / 32;
inline constexpr int kWarpgroupRows = 64;  // rows of d that a warpgroup has of one wgmma
inline constexpr int kStepK = 16;          // of bf16, summed over by one wgmma
inline constexpr int kPanel = 64;          // elements of bf16 in 128 bytes, the widest row that TMA swizzles
inline constexpr int kSharedBytesOfCta = 227 * 1024;  // the most that a CTA can have

}  // namespace tessera::hopper
