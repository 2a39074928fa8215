// attn_forward, attn_backward: refuse what cannot be met, then choose the family of kernels. No CUDA headers.
#include <cfloat>
#include <initializer_list>

#include "kernels/attention/kernels.h"

namespace tessera::attention {
namespace {

constexpr uintptr_t kTensorAlignment = 16, kWorkspaceAlignment = 256;

bool aligned(const void* data, uintptr_t alignment) {
  return data != nullptr && reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

bool aligned(const AttnProblem& p, std::initializer_list<const AttnTensor*> tensors) {
  const int64_t step = kTensorAlignment / (p.dtype == ATTN_BF16 ? 2 : 4);  // elements
  for (const AttnTensor* t : tensors) {
    if (!aligned(t->data, kTensorAlignment)) return false;
    if (t->batch % step || t->row % step || t->head % step) return false;
  }
  return true;
}

// With a scale of 0 a masked score, -inf, would become NaN; with the smallest that there is, it stays, and
// the others vanish.
template <class Call>  // AttnForward or AttnBackward
Call with_positive_scale(Call call) {
  if (call.problem.scale == 0) call.problem.scale = FLT_MIN;
  return call;
}

// Compute capabilities whose CTAs get 163 KB of shared memory or more; the others get 99.
bool large_shared_memory(int arch) { return arch == 80 || arch == 87 || (arch >= 90 && arch < 120); }

AttnStatus forward_bf16(const AttnForward& f, [[maybe_unused]] int arch, CUstream_st* stream) {
#ifdef TESSERA_ATTENTION_SM90
  if (arch == 90) {
    return f.problem.head_dim == 64 ? sm90::forward_64(f, stream) : sm90::forward_128(f, stream);
  }
#endif
  return f.problem.head_dim == 64 ? sm80::forward_64(f, stream) : sm80::forward_128(f, stream);
}

AttnStatus backward_bf16(const AttnBackward& f, int arch, CUstream_st* stream) {
#ifdef TESSERA_ATTENTION_SM90
  if (arch == 90)
    return f.problem.head_dim == 64 ? sm90::backward_64(f, stream) : sm90::backward_128(f, stream);
#endif
  if (f.problem.head_dim == 64) return sm80::backward_64(f, stream);
  return large_shared_memory(arch) ? sm80::backward_128(f, stream) : sm80::backward_128_small(f, stream);
}

}  // namespace
}  // namespace tessera::attention

using namespace tessera::attention;

extern "C" AttnStatus attn_forward(const AttnForward* args, int arch, CUstream_st* stream) {
  const AttnForward f = with_positive_scale(*args);
  const AttnStatus status = attn_supports(&f.problem, arch);
  if (status != ATTN_OK) return status;
  if (!aligned(f.problem, {&f.q, &f.k, &f.v, &f.out}) || !aligned(f.lse, sizeof(float)))
    return ATTN_BAD_ALIGNMENT;
  return f.problem.dtype == ATTN_F32 ? f32::forward(f, stream) : forward_bf16(f, arch, stream);
}

extern "C" AttnStatus attn_backward(const AttnBackward* args, int arch, CUstream_st* stream) {
  const AttnBackward f = with_positive_scale(*args);
  const AttnStatus status = attn_supports(&f.problem, arch);
  if (status != ATTN_OK) return status;
  if (!aligned(f.problem, {&f.q, &f.k, &f.v, &f.out, &f.dout, &f.dq, &f.dk, &f.dv}))
    return ATTN_BAD_ALIGNMENT;
  if (!aligned(f.lse, sizeof(float))) return ATTN_BAD_ALIGNMENT;
  if (f.workspace == nullptr ||
      f.workspace_bytes < attn_backward_workspace(&f.problem, arch, f.deterministic)) {
    return ATTN_NO_WORKSPACE;
  }
  if (!aligned(f.workspace, kWorkspaceAlignment)) return ATTN_BAD_ALIGNMENT;
  return f.problem.dtype == ATTN_F32 ? f32::backward(f, stream) : backward_bf16(f, arch, stream);
}
