// One CTA a row: the simplest attention that never stores the N x N matrix. A rung of the ladder (ladder.h),
// there to be read and measured; attn_forward() does not choose it. No CUDA header here.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention::row {

// The forward keeps a row of scores in shared memory, within the 99 KB that every chip has from compute
// capability 8.0 on.
inline constexpr int64_t kMostTokens = 24'000;

using f32::BackwardWorkspace;  // delta alone

// bf16, head dims 64 and 128, grouped heads, up to kMostTokens. Pointers and strides are as attention.h says;
// they are not checked.
AttnStatus supports(const AttnProblem& problem);
AttnStatus forward(const AttnForward& f, CUstream_st* stream);
AttnStatus backward(const AttnBackward& f, CUstream_st* stream);  // the same bits every time

}  // namespace tessera::attention::row
