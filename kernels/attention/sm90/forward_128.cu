#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_128(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<ForwardTile<128>>(f, stream);
}
AttnStatus forward_128_alibi(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithAlibi<ForwardTile<128>>>(f, stream);
}
AttnStatus forward_128_cap(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithCap<ForwardTile<128>>>(f, stream);
}
AttnStatus forward_128_dropout(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<WithDropout<ForwardTile<128>>>(f, stream);
}
AttnStatus forward_128_listed(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<ListedForwardTile<128>>(f, stream);
}
AttnStatus forward_128_mask(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<WithMask<ForwardTile<128>>>(f, stream);
}
AttnStatus forward_128_sink(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithSink<ForwardTile<128>>>(f, stream);
}
}  // namespace tessera::attention::sm90
