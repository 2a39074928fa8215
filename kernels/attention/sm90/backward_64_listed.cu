#include "kernels/attention/sm90/backward_launch.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus backward_64_listed(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<Listed<BackwardShape<64>>>(f, stream);
}
}  // namespace tessera::attention::sm90
