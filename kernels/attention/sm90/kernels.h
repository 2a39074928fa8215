// The launchers of the sm_90 kernels: bf16, wgmma and TMA. They are built if 90a is among the architectures.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention::sm90 {

// For head dims up to 64
AttnStatus forward_64(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64(const AttnBackward& f, CUstream_st* stream);
AttnStatus forward_64_dropout(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_dropout(const AttnBackward& f, CUstream_st* stream);
// For head dims of 128; `narrow`: between 64 and 128
AttnStatus forward_128(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_narrow(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_128(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_narrow(const AttnBackward& f, CUstream_st* stream);
AttnStatus forward_128_dropout(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_narrow_dropout(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_128_dropout(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_narrow_dropout(const AttnBackward& f, CUstream_st* stream);

// For head dims of 256, without dropout; `narrow`: between 128 and 256
AttnStatus forward_256(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_narrow(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_mask(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_narrow_mask(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_256(const AttnBackward& f, CUstream_st* stream);  // any mask, as the next
AttnStatus backward_256_narrow(const AttnBackward& f, CUstream_st* stream);

// Any mask, without dropout
AttnStatus forward_64_mask(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_mask(const AttnBackward& f, CUstream_st* stream);
AttnStatus forward_128_mask(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_narrow_mask(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_128_mask(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_narrow_mask(const AttnBackward& f, CUstream_st* stream);

// ALiBi under causal masks, without dropout
AttnStatus forward_64_alibi(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_alibi(const AttnBackward& f, CUstream_st* stream);
AttnStatus forward_128_alibi(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_narrow_alibi(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_128_alibi(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_narrow_alibi(const AttnBackward& f, CUstream_st* stream);

// Any mask with sinks, without dropout
AttnStatus forward_64_sink(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_sink(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_narrow_sink(const AttnForward& f, CUstream_st* stream);

// Sparse blocks with any mask, without dropout
AttnStatus forward_64_listed(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_listed(const AttnBackward& f, CUstream_st* stream);
AttnStatus forward_128_listed(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_narrow_listed(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_128_listed(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_narrow_listed(const AttnBackward& f, CUstream_st* stream);

// In FP8, any mask, without dropout
AttnStatus forward_fp8_64(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_fp8_128(const AttnForward& f, CUstream_st* stream);  // head dims between as well
AttnStatus forward_fp8_256(const AttnForward& f, CUstream_st* stream);

// Any mask with a cap of scores, without dropout
AttnStatus forward_64_cap(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_cap(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_narrow_cap(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_cap(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_cap(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_narrow_cap(const AttnBackward& f, CUstream_st* stream);
AttnStatus forward_256_cap(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_narrow_cap(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_256_cap(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_narrow_cap(const AttnBackward& f, CUstream_st* stream);

}  // namespace tessera::attention::sm90
