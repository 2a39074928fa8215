#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_128_sink(const AttnForward& f, CUstream_st* stream) {
  using Shape = WithSink<ForwardTile<128>>;
  return mask_of(f.problem).plain() ? launch_forward<Shape>(f, stream) : launch_forward<WithMask<Shape>>(f, stream);
}
}  // namespace tessera::attention::sm90
