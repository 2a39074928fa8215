// Attention of one new token of each sequence over the cache: the call of attention.h.
#include "kernels/attention/family.h"
#include "kernels/attention/mixture.h"
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
  AttnStatus status;
  if (s.choice)
    status = attention::mixture::decode(
        {.call = args, .choice = attn_choice(s.choice), .means = a.means.as<float>()}, on.stream);
  else if (is_small(s.cache))
    status = attention::decode::kFamily.run_small({.call = args, .groups = a.groups.data, .dtype = s.cache},
                                                  on.stream);
  else
    status = attn_decode(&args, a.plan.arch, on.stream);
  if (status == ATTN_OK) return;
  fail("{}: {} (batch {}, capacity {}, heads {}, key/value heads {}, head dim {}, {}{})", a.kName,
       cuda::failure_text(status), s.batch, s.capacity, s.heads, s.kv_heads, s.head_dim,
       name_of(a.plan.dtype), is_small(s.cache) ? fmt::format(", a cache of {}", name_of(s.cache)) : "");
}

void CudaBackend::complete_means(const CacheAppend& a, const Launch& on) {
  if (!a.means) return;
  const AttnStatus status =
      attention::mixture::complete_means({.dtype = attn_dtype(a.k_cache.dtype),
                                          .k = attn_tensor(a.k_cache),
                                          .starts = a.starts.as<int32_t>(),
                                          .batch = a.k_cache.shape[0],
                                          .capacity = a.k_cache.shape[1],
                                          .kv_heads = a.k_cache.shape[2],
                                          .tokens = a.k.tensor.shape[1],
                                          .head_dim = static_cast<int>(a.k_cache.shape[3]),
                                          .size = static_cast<int>(a.block),
                                          .means = a.means.as<float>()},
                                         on.stream);
  check(status == ATTN_OK, "{}: {}", a.kName, cuda::failure_text(status));
}

}  // namespace tessera
