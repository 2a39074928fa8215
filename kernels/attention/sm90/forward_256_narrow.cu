#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_256_narrow(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<Narrow<ForwardTile<256>>>(f, stream);
}
AttnStatus forward_256_narrow_cap(const AttnForward& f, CUstream_st* stream) {
  return mask_of(f.problem).plain() ? launch_forward<WithCap<Narrow<ForwardTile<256>>>>(f, stream)
                                    : launch_forward<WithCap<Narrow<MaskedForwardTile256>>>(f, stream);
}
AttnStatus forward_256_narrow_mask(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<Narrow<MaskedForwardTile256>>(f, stream);
}
}  // namespace tessera::attention::sm90
