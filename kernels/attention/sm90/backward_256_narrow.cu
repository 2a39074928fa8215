#include "kernels/attention/sm90/kernels.h"
#include "kernels/attention/sm90/wide_launch.cuh"

namespace tessera::attention::sm90 {
AttnStatus backward_256_narrow(const AttnBackward& f, CUstream_st* stream) {
  return launch_wide_backward<Narrow<WideShape>>(f, stream);
}
AttnStatus backward_256_narrow_cap(const AttnBackward& f, CUstream_st* stream) {
  return launch_wide_backward<WithCap<Narrow<WideShape>>>(f, stream);
}
}  // namespace tessera::attention::sm90
