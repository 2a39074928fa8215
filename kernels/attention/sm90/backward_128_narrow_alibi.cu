#include "kernels/attention/sm90/backward_launch.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus backward_128_narrow_alibi(const AttnBackward& f, CUstream_st* stream) {
  using Shape = WithAlibi<Narrow<BackwardShape<128>>>;
  return mask_of(f.problem).plain() ? launch_backward<Shape>(f, stream) : launch_backward<WithMask<Shape>>(f, stream);
}
}  // namespace tessera::attention::sm90
