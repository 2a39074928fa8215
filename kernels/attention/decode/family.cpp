// One query of each sequence over a cache of keys and values, bf16 and fp32, from compute capability 8.0 on:
// the keys are shared out among CTAs, and their parts are merged (split-KV).
#include "kernels/attention/family.h"

#include "kernels/attention/decode/kernels.h"
#include "kernels/attention/decode/shape.h"
#include "kernels/attention/decode/small.h"

namespace tessera::attention::decode {
namespace {

#ifdef TESSERA_ATTENTION_CUDA
AttnStatus run(const AttnDecode& d, CUstream_st* stream) {
  if (d.problem.blocks.size > 0)
    return d.problem.dtype == ATTN_BF16 ? decode_bf16_listed(d, stream) : decode_f32_listed(d, stream);
  if (d.problem.sinks != 0 || d.problem.alibi_heads != 0 || d.problem.score_cap != 0)
    return d.problem.dtype == ATTN_BF16 ? decode_bf16_general(d, stream) : decode_f32_general(d, stream);
  return d.problem.dtype == ATTN_BF16 ? decode_bf16(d, stream) : decode_f32(d, stream);
}
AttnStatus run_small(const SmallDecode& d, CUstream_st* stream) {
  switch (d.dtype) {
    case CacheDtype::kFp8:
      return decode_fp8(d, stream);
    case CacheDtype::kInt8:
      return decode_int8(d, stream);
    case CacheDtype::kInt4:
      return decode_int4(d, stream);
    case CacheDtype::kAuto:
    case CacheDtype::kF32:
    case CacheDtype::kBF16:
      break;
  }
  return ATTN_BAD_SHAPE;  // no codes
}
#else
constexpr std::nullptr_t run = nullptr, run_small = nullptr;
#endif

}  // namespace

constinit const DecodeFamily kFamily = {
    .lowest_arch = kLowestArch,
    .head_dims = {.step = 8, .most = 256},
    .workspace = [](const AttnDecodeProblem& p) { return Workspace(nullptr, p).bytes; },
    .units = most_units,
    .run = run,
    .small_workspace = [](const AttnDecodeProblem& p,
                          CacheDtype cache) { return small_workspace(nullptr, p, cache).bytes; },
    .run_small = run_small};

}  // namespace tessera::attention::decode
