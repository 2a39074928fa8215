// attn_forward, attn_backward, attn_decode: refuse what cannot be met, then call the first family that can.
// No CUDA headers; without CUDA there is none.
#include <cfloat>
#include <initializer_list>

#include "kernels/attention/family.h"
#include "kernels/attention/sinks.h"
#include "kernels/base/check.h"

namespace tessera::attention {
namespace {

constexpr uintptr_t kTensorAlignment = 16, kWorkspaceAlignment = 256;

bool aligned(const void* data, uintptr_t alignment) {
  return data != nullptr && reinterpret_cast<uintptr_t>(data) % alignment == 0;
}

bool aligned(AttnDtype dtype, std::initializer_list<const AttnTensor*> tensors) {
  const int64_t step = kTensorAlignment / (dtype == ATTN_BF16 ? 2 : 4);  // elements
  for (const AttnTensor* t : tensors) {
    if (!aligned(t->data, kTensorAlignment)) return false;
    if (t->batch % step || t->row % step || t->head % step) return false;
  }
  return true;
}

AttnStatus check_workspace(const void* workspace, size_t bytes, size_t needed) {
  if (needed == 0) return ATTN_OK;
  if (workspace == nullptr || bytes < needed) return ATTN_NO_WORKSPACE;
  return aligned(workspace, kWorkspaceAlignment) ? ATTN_OK : ATTN_BAD_ALIGNMENT;
}

// A call has sinks if its problem has, [heads] of its dtype.
template <class Call>
AttnStatus check_sinks(const Call& call) {
  if ((call.sinks != nullptr) != (call.problem.sinks != 0)) return ATTN_BAD_SINKS;
  const uintptr_t element = call.problem.dtype == ATTN_BF16 ? 2 : 4;
  return call.sinks == nullptr || aligned(call.sinks, element) ? ATTN_OK : ATTN_BAD_ALIGNMENT;
}

AttnStatus check(const AttnForward& f, size_t workspace_bytes) {
  if (const AttnStatus status = check_sinks(f); status != ATTN_OK) return status;
  const bool good = aligned(f.problem.dtype, {&f.q, &f.k, &f.v, &f.out}) && aligned(f.lse, sizeof(float));
  return good ? check_workspace(f.workspace, f.workspace_bytes, workspace_bytes) : ATTN_BAD_ALIGNMENT;
}

AttnStatus check(const AttnBackward& f, size_t workspace_bytes) {
  if (const AttnStatus status = check_sinks(f); status != ATTN_OK) return status;
  if (f.dsinks != nullptr && f.sinks == nullptr) return ATTN_BAD_SINKS;
  if (!aligned(f.problem.dtype, {&f.q, &f.k, &f.v, &f.out, &f.dout, &f.dq, &f.dk, &f.dv}))
    return ATTN_BAD_ALIGNMENT;
  if (!aligned(f.lse, sizeof(float))) return ATTN_BAD_ALIGNMENT;
  return check_workspace(f.workspace, f.workspace_bytes, workspace_bytes);
}

AttnStatus check(const AttnDecode& d, size_t workspace_bytes) {
  if (const AttnStatus status = check_sinks(d); status != ATTN_OK) return status;
  const bool good =
      aligned(d.problem.dtype, {&d.q, &d.k, &d.v, &d.out}) && aligned(d.starts, sizeof(int32_t));
  return good ? check_workspace(d.workspace, d.workspace_bytes, workspace_bytes) : ATTN_BAD_ALIGNMENT;
}

// With a scale of 0 a masked score, -inf, would become NaN; with the smallest that
// there is, it stays, and the others vanish.
template <class Call>  // AttnForward, AttnBackward or AttnDecode
Call with_positive_scale(Call call) {
  if (call.problem.scale == 0) call.problem.scale = FLT_MIN;
  return call;
}

const KernelFamily* chosen(const AttnProblem& p, int arch) {
  for (const KernelFamily* family : families()) {
    if (!family->by_name_only && family->built() && supports(*family, p, arch) == ATTN_OK) return family;
  }
  return nullptr;
}

#ifdef TESSERA_ATTENTION_CUDA
AttnStatus with_sinks(const KernelFamily& family, const AttnForward& f, int arch, CUstream_st* stream) {
  const AttnStatus status = family.forward(with_positive_scale(f), arch, stream);
  const bool has_them = f.sinks == nullptr || (family.adds_sinks != nullptr && family.adds_sinks(f.problem));
  return status == ATTN_OK && !has_them ? apply_sinks(f, stream) : status;
}
AttnStatus with_sinks(const KernelFamily& family, const AttnBackward& f, int arch, CUstream_st* stream) {
  const AttnStatus status = family.backward(with_positive_scale(f), arch, stream);
  if (status != ATTN_OK || f.dsinks == nullptr) return status;
  const size_t before = own_backward_workspace(family, f.problem);
  const TiledRowStatistics rows = family.row_statistics != nullptr ? family.row_statistics(f) : TiledRowStatistics{};
  return sink_gradients(f, rows, static_cast<uint8_t*>(f.workspace) + before, stream);
}
#else  // no family is built
template <class Call>
AttnStatus with_sinks(const KernelFamily&, const Call&, int, CUstream_st*) {
  return ATTN_BAD_ARCH;
}
#endif

}  // namespace

AttnStatus run_forward(const KernelFamily& family, const AttnForward& args, int arch, CUstream_st* stream) {
  AttnStatus status = supports(family, args.problem, arch);
  if (status == ATTN_OK)
    status = family.built() ? check(args, forward_workspace(family, args.problem)) : ATTN_BAD_ARCH;
  return status == ATTN_OK ? with_sinks(family, args, arch, stream) : status;
}

AttnStatus run_backward(const KernelFamily& family, const AttnBackward& args, int arch, CUstream_st* stream) {
  AttnStatus status = supports(family, args.problem, arch);
  if (status == ATTN_OK)
    status = family.built() ? check(args, backward_workspace(family, args.problem)) : ATTN_BAD_ARCH;
  return status == ATTN_OK ? with_sinks(family, args, arch, stream) : status;
}

}  // namespace tessera::attention

using namespace tessera::attention;

extern "C" AttnStatus attn_forward(const AttnForward* args, int arch, CUstream_st* stream) {
  if (const AttnStatus status = attn_supports(&args->problem, arch); status != ATTN_OK) return status;
  const size_t workspace = attn_forward_workspace(&args->problem, arch);
  if (const AttnStatus status = check(*args, workspace); status != ATTN_OK) return status;
  const KernelFamily* family = chosen(args->problem, arch);
  return family != nullptr ? run_forward(*family, *args, arch, stream) : ATTN_BAD_ARCH;
}

extern "C" AttnStatus attn_backward(const AttnBackward* args, int arch, CUstream_st* stream) {
  if (const AttnStatus status = attn_supports(&args->problem, arch); status != ATTN_OK) return status;
  // attn_backward_workspace() may be more than the family that runs here needs.
  const size_t workspace = attn_backward_workspace(&args->problem, arch);
  if (const AttnStatus status = check(*args, workspace); status != ATTN_OK) return status;
  const KernelFamily* family = chosen(args->problem, arch);
  return family != nullptr ? run_backward(*family, *args, arch, stream) : ATTN_BAD_ARCH;
}

extern "C" AttnStatus attn_decode(const AttnDecode* args, int arch, CUstream_st* stream) {
  if (const AttnStatus status = attn_decode_supports(&args->problem, arch); status != ATTN_OK) return status;
  if (const AttnStatus status = check(*args, decode::kFamily.workspace(args->problem)); status != ATTN_OK)
    return status;
  return decode::kFamily.built() ? decode::kFamily.run(with_positive_scale(*args), stream) : ATTN_BAD_ARCH;
}
