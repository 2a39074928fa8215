#include "kernels/attention/sm90/backward_launch.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus backward_64(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<BackwardShape<64>>(f, stream);
}
AttnStatus backward_64_alibi(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward_by_mask<WithAlibi<BackwardShape<64>>>(f, stream);
}
AttnStatus backward_64_cap(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward_by_mask<WithCap<BackwardShape<64>>>(f, stream);
}
AttnStatus backward_64_dropout(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<WithDropout<BackwardShape<64>>>(f, stream);
}
AttnStatus backward_64_listed(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<Listed<BackwardShape<64>>>(f, stream);
}
AttnStatus backward_64_mask(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<WithMask<BackwardShape<64>>>(f, stream);
}
}  // namespace tessera::attention::sm90
