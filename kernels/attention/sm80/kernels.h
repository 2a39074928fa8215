// The launchers of the sm_80 kernels: bf16, mma.sync.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention::sm80 {

// The number is the width of the tiles; `narrow` is for heads narrower than that.
AttnStatus forward_64(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_64_narrow(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_narrow(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256(const AttnForward& f, CUstream_st* stream);  // for narrower heads as well
AttnStatus backward_64(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_64_narrow(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_narrow(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256(const AttnBackward& f, CUstream_st* stream);
// For chips with 99 KB of shared memory a CTA
AttnStatus backward_128_small(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_small_narrow(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_small(const AttnBackward& f, CUstream_st* stream);

// With dropout, for all head dims that these tiles hold
AttnStatus forward_64_dropout(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_dropout(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_dropout(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_dropout(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_dropout(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_dropout(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_small_dropout(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_small_dropout(const AttnBackward& f, CUstream_st* stream);

// Any mask, with dropout or without, for all head dims that these tiles hold
AttnStatus forward_64_masked(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_masked(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_masked(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_masked(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_masked(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_masked(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_small_masked(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_small_masked(const AttnBackward& f, CUstream_st* stream);

// Sparse blocks with any mask, without dropout, for all head dims that these tiles hold
AttnStatus forward_64_listed(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_listed(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_listed(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_listed(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_listed(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_listed(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_small_listed(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_small_listed(const AttnBackward& f, CUstream_st* stream);

// ALiBi with any mask, with dropout or without, for all head dims that these tiles hold
AttnStatus forward_64_alibi(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_alibi(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_alibi(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_alibi(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_alibi(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_alibi(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_small_alibi(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_small_alibi(const AttnBackward& f, CUstream_st* stream);

// A cap of scores with any mask, with dropout or without, for all head dims that these tiles hold
AttnStatus forward_64_cap(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_128_cap(const AttnForward& f, CUstream_st* stream);
AttnStatus forward_256_cap(const AttnForward& f, CUstream_st* stream);
AttnStatus backward_64_cap(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_cap(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_cap(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_128_small_cap(const AttnBackward& f, CUstream_st* stream);
AttnStatus backward_256_small_cap(const AttnBackward& f, CUstream_st* stream);

}  // namespace tessera::attention::sm80
