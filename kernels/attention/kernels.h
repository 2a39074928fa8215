// The kernels behind attention.h, family by family. Arguments have been checked. No CUDA header here.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention {

namespace sm80 {  // bf16, mma.sync: compute capability 8.0 and up
AttnStatus forward_64(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128(const AttnBackward& f, CUstream_st* stream);
// Within 99 KB of shared memory a CTA
AttnStatus backward_128_small(const AttnBackward& f, CUstream_st* stream);
}  // namespace sm80

// bf16, wgmma and the copy engine: compute capability 9.0; built where 90a is among the architectures
namespace sm90 {
AttnStatus forward_64(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128(const AttnBackward& f, CUstream_st* stream);
}  // namespace sm90

namespace f32 {  // fp32 throughout, no tensor cores
AttnStatus forward(const AttnForward& f, CUstream_st* stream);
AttnStatus backward(const AttnBackward& f, CUstream_st* stream);
}  // namespace f32

}  // namespace tessera::attention
