#include "kernels/attention/sm80/backward_launch.cuh"
#include "kernels/attention/sm80/kernels.h"

namespace tessera::attention::sm80 {
static_assert(BackwardMemory<SmallBackwardTile256>::kBytes <= kSharedEverywhere);
AttnStatus backward_256_small(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<SmallBackwardTile256>(f, stream);
}
}  // namespace tessera::attention::sm80
