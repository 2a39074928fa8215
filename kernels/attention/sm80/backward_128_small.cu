#include "kernels/attention/sm80/backward_launch.cuh"
#include "kernels/attention/sm80/kernels.h"

namespace tessera::attention::sm80 {
static_assert(BackwardMemory<SmallBackwardTile128>::kBytes <= kSharedEverywhere);
AttnStatus backward_128_small(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<SmallBackwardTile128>(f, stream);
}
}  // namespace tessera::attention::sm80
