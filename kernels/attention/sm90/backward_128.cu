#include "kernels/attention/sm90/backward_launch.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus backward_128(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<BackwardShape<128>>(f, stream);
}
AttnStatus backward_128_alibi(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward_by_mask<WithAlibi<BackwardShape<128>>>(f, stream);
}
AttnStatus backward_128_cap(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward_by_mask<WithCap<BackwardShape<128>>>(f, stream);
}
AttnStatus backward_128_dropout(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<WithDropout<BackwardShape<128>>>(f, stream);
}
AttnStatus backward_128_listed(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<Listed<BackwardShape<128>>>(f, stream);
}
AttnStatus backward_128_mask(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<WithMask<BackwardShape<128>>>(f, stream);
}
}  // namespace tessera::attention::sm90
