#include "kernels/attention/sm90/forward.cuh"
#include "kernels/attention/sm90/kernels.h"

namespace tessera::attention::sm90 {
AttnStatus forward_64(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<ForwardTile<64>>(f, stream);
}
AttnStatus forward_64_alibi(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithAlibi<ForwardTile<64>>>(f, stream);
}
AttnStatus forward_64_cap(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithCap<ForwardTile<64>>>(f, stream);
}
AttnStatus forward_64_dropout(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<WithDropout<ForwardTile<64>>>(f, stream);
}
AttnStatus forward_64_listed(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<ListedForwardTile<64>>(f, stream);
}
AttnStatus forward_64_mask(const AttnForward& f, CUstream_st* stream) {
  return launch_forward<WithMask<ForwardTile<64>>>(f, stream);
}
AttnStatus forward_64_sink(const AttnForward& f, CUstream_st* stream) {
  return launch_forward_by_mask<WithSink<ForwardTile<64>>>(f, stream);
}
}  // namespace tessera::attention::sm90
