#include "kernels/attention/sm90/kernels.h"
#include "kernels/attention/sm90/wide_launch.cuh"

namespace tessera::attention::sm90 {
AttnStatus backward_256(const AttnBackward& f, CUstream_st* stream) {
  return launch_wide_backward<WideShape>(f, stream);
}
AttnStatus backward_256_cap(const AttnBackward& f, CUstream_st* stream) {
  return launch_wide_backward<WithCap<WideShape>>(f, stream);
}
}  // namespace tessera::attention::sm90
