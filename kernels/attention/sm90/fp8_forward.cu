#include "kernels/attention/sm90/fp8_forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
namespace {

template <int kWidth>
AttnStatus forward_fp8(const AttnForward& f, CUstream_st* stream) {
  using Shape = Fp8Tile<kWidth>;
  return mask_of(f.problem).plain() ? launch_fp8_forward<Shape>(f, stream)
                                    : launch_fp8_forward<WithMask<Shape>>(f, stream);
}

}  // namespace

AttnStatus forward_fp8_64(const AttnForward& f, CUstream_st* stream) { return forward_fp8<64>(f, stream); }
AttnStatus forward_fp8_128(const AttnForward& f, CUstream_st* stream) { return forward_fp8<128>(f, stream); }
AttnStatus forward_fp8_256(const AttnForward& f, CUstream_st* stream) { return forward_fp8<256>(f, stream); }

}  // namespace tessera::attention::sm90
