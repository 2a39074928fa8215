#include "kernels/attention/sm80/backward_launch.cuh"
#include "kernels/attention/sm80/kernels.h"

namespace tessera::attention::sm80 {
static_assert(BackwardMemory<BackwardTile<64>>::kBytes <= kSharedEverywhere);
AttnStatus backward_64(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<BackwardTile<64>>(f, stream);
}
}  // namespace tessera::attention::sm80
