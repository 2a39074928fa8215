// What a build without cuDNN answers.
#include "kernels/attention/cudnn.h"
#include "kernels/base/check.h"

namespace tessera::attention {

bool cudnn_built() { return false; }

bool cudnn_available(std::string& why_not) {
  why_not = kCudnnNotBuilt;
  return false;
}

int cudnn_version_number() { return 0; }
std::string cudnn_version() { return ""; }
bool cudnn_asks_for_fixed_order() { return false; }

struct CudnnAttention::Impl {};

CudnnAttention::CudnnAttention() { fail("attention by cuDNN: {}", kCudnnNotBuilt); }
CudnnAttention::~CudnnAttention() = default;
void CudnnAttention::forward(const AttnForward&, void*, size_t, CUstream_st*) {}
void CudnnAttention::backward(const AttnBackward&, CUstream_st*) {}
void CudnnAttention::decode(const AttnDecode&, CUstream_st*) {}
int64_t CudnnAttention::decode_workspace(const AttnDecode&) { return 0; }
int64_t CudnnAttention::forward_workspace(const AttnForward&) { return 0; }
int64_t CudnnAttention::backward_workspace(const AttnBackward&) { return 0; }

}  // namespace tessera::attention
