#include "kernels/attention/sm90/backward_launch.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus backward_128_narrow(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<Narrow<BackwardShape<128>>>(f, stream);
}
AttnStatus backward_128_narrow_alibi(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward_by_mask<WithAlibi<Narrow<BackwardShape<128>>>>(f, stream);
}
AttnStatus backward_128_narrow_cap(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward_by_mask<WithCap<Narrow<BackwardShape<128>>>>(f, stream);
}
AttnStatus backward_128_narrow_dropout(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<WithDropout<Narrow<BackwardShape<128>>>>(f, stream);
}
AttnStatus backward_128_narrow_listed(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<Listed<Narrow<BackwardShape<128>>>>(f, stream);
}
AttnStatus backward_128_narrow_mask(const AttnBackward& f, CUstream_st* stream) {
  return launch_backward<WithMask<Narrow<BackwardShape<128>>>>(f, stream);
}
}  // namespace tessera::attention::sm90
