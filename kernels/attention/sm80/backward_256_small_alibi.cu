#include "kernels/attention/sm80/backward_launch.cuh"
#include "kernels/attention/sm80/kernels.h"

namespace tessera::attention::sm80 {
AttnStatus backward_256_small_alibi(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward_alibi<SmallBackwardTile256>(f, stream);
}
}  // namespace tessera::attention::sm80
