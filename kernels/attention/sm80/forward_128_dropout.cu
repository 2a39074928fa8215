#include "kernels/attention/sm80/forward.cuh"
#include "kernels/attention/sm80/kernels.h"

namespace tessera::attention::sm80 {
AttnStatus forward_128_dropout(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<Dropping<ForwardTile<128>>, true>(f, stream);
}
}  // namespace tessera::attention::sm80
