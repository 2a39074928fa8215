#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_128_listed(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<ListedForwardTile<128>>(f, stream);
}
}  // namespace tessera::attention::sm90
