#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_128_narrow(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<Narrow<ForwardTile<128>>>(f, stream);
}
AttnStatus forward_128_narrow_alibi(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithAlibi<Narrow<ForwardTile<128>>>>(f, stream);
}
AttnStatus forward_128_narrow_cap(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithCap<Narrow<ForwardTile<128>>>>(f, stream);
}
AttnStatus forward_128_narrow_dropout(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<WithDropout<Narrow<ForwardTile<128>>>>(f, stream);
}
AttnStatus forward_128_narrow_listed(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<Narrow<ListedForwardTile<128>>>(f, stream);
}
AttnStatus forward_128_narrow_mask(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<WithMask<Narrow<ForwardTile<128>>>>(f, stream);
}
AttnStatus forward_128_narrow_sink(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithSink<Narrow<ForwardTile<128>>>>(f, stream);
}
}  // namespace tessera::attention::sm90
