#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_256(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<ForwardTile<256>>(f, stream);
}
AttnStatus forward_256_cap(const AttnForward& f, CUstream_st* stream) {
  return mask_of(f.problem).plain() ? launch_forward<WithCap<ForwardTile<256>>>(f, stream)
                                    : launch_forward<WithCap<MaskedForwardTile256>>(f, stream);
}
AttnStatus forward_256_mask(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<MaskedForwardTile256>(f, stream);
}
}  // namespace tessera::attention::sm90
