#include "kernels/attention/kernels.h"
#include "kernels/attention/sm90/backward_launch.cuh"

namespace tessera::attention::sm90 {
AttnStatus backward_128(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<128>(f, stream);
}
}  // namespace tessera::attention::sm90
