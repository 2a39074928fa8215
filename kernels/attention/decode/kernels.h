// The decode kernels, by dtype. Arguments have been checked.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera::attention::decode {

AttnStatus decode_bf16(const AttnDecode& d, CUstream_st* stream);
AttnStatus decode_f32(const AttnDecode& d, CUstream_st* stream);
// With sinks, a bias or both
AttnStatus decode_bf16_general(const AttnDecode& d, CUstream_st* stream);
AttnStatus decode_f32_general(const AttnDecode& d, CUstream_st* stream);
// With sparse blocks, beside these or not
AttnStatus decode_bf16_listed(const AttnDecode& d, CUstream_st* stream);
AttnStatus decode_f32_listed(const AttnDecode& d, CUstream_st* stream);

}  // namespace tessera::attention::decode
