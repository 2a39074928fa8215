// Tells whether flash attention runs kernels that were not written for its device.
#pragma once

#include <string>

#include "kernels/attention/choose.h"

namespace tessera {

// "head dim 160 runs the kernels for compute capability 8.0: those for 9.0 serve multiples of 8 up to
// 128"; "" where the device has kernels of its own for the plan, and for other kinds of attention
std::string fallback_note(const AttentionPlan& plan);

}  // namespace tessera
