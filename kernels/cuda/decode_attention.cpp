// Attention of one new token of each sequence over the cache: the call of attention.h.
#include "kernels/attention/family.h"
#include "kernels/base/check.h"
#include "kernels/cuda/attention_status.h"
#include "kernels/cuda/cuda_backend.h"

namespace tessera {

void CudaBackend::run_op(const DecodeAttention& a, const Launch& on) {
  const auto cache = [&](const Tensor& rows) {
    AttnTensor tensor = attn_tensor(rows);
    if (a.plan.shape.one_cache) tensor.batch = 0;
    return tensor;
  };
  const AttnDecode args{.q = attn_tensor(a.q),
                        .k = cache(a.k_cache),
                        .v = cache(a.v_cache),
                        .out = attn_tensor(a.y),
                        .starts = a.starts.as<int32_t>(),
                        .workspace = a.workspace.data,
                        .workspace_bytes = a.workspace.bytes(),
                        .sinks = a.sinks.data,
                        .problem = attn_decode_problem(a.plan, a.blocks)};
  const DecodeShape& s = a.plan.shape;
  const AttnStatus status = is_small(s.cache)
                                ? attention::decode::kFamily.run_small(
                                      {.call = args, .groups = a.groups.data, .dtype = s.cache}, on.stream)
                                : attn_decode(&args, a.plan.arch, on.stream);
  if (status == ATTN_OK) return;
  fail("{}: {} (batch {}, capacity {}, heads {}, key/value heads {}, head dim {}, {}{})", a.kName,
       cuda::failure_text(status), s.batch, s.capacity, s.heads, s.kv_heads, s.head_dim,
       name_of(a.plan.dtype), is_small(s.cache) ? fmt::format(", a cache of {}", name_of(s.cache)) : "");
}

}  // namespace tessera
