#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_64_alibi(const AttnForward& f, CUstream_st* stream) {
  using Shape = WithAlibi<ForwardTile<64>>;
  return mask_of(f.problem).plain() ? launch_forward<Shape>(f, stream) : launch_forward<WithMask<Shape>>(f, stream);
}
}  // namespace tessera::attention::sm90
