// AdamW: one pass over parameters, gradients and moments, in one launch for many tensors. The step is
// computed on the fp32 master, which is a bf16 parameter and its master's lower bits (kernels/base/master.h).
// So a bf16 parameter is 26 bytes of traffic, with bf16 moments 18.
#include "kernels/cuda/adamw.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/workspace.h"

namespace tessera {
namespace {

using cuda::adamw::kElements, cuda::adamw::load_four, cuda::adamw::moment_of, cuda::adamw::store_moments,
    cuda::adamw::Update;

constexpr int kThreads = 256;
constexpr int kSteps = 2;  // accesses to each array that a thread has under way

// Parts that one launch updates. A part's blocks follow those of the one before it.
constexpr int kMaxParts = 48;  // the arguments of a kernel have 4 KiB
struct Parts {
  struct One {
    void *param, *low;  // low: none if param is fp32
    const void* grad;
    void *m, *v;
    int64_t count, decayed, first_element;
    uint64_t random_key;
    uint32_t end_block;  // of the grid
  };
  One part[kMaxParts];
  int count = 0;
};

// The part of the calling block: the first that ends after it
__device__ __forceinline__ int part_of_block(const Parts& parts) {
  int low = 0, high = parts.count - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    parts.part[middle].end_block > blockIdx.x ? high = middle : low = middle + 1;
  }
  return low;
}

template <class T, class G, class M>
__global__ __launch_bounds__(kThreads) void adamw_kernel(const __grid_constant__ Parts parts,
                                                         const float* norms, int64_t norm_count,
                                                         const float* verdict, Update update, uint64_t step) {
  if (!cuda::adamw::begin(update, norms, norm_count, verdict)) return;
  const int at = part_of_block(parts);
  const Parts::One& part = parts.part[at];
  const uint32_t block = blockIdx.x - (at > 0 ? parts.part[at - 1].end_block : 0);
  const int64_t count = part.count;
  const auto p = cuda::adamw::parameters<T>(part.param, part.low);
  const G* grad = static_cast<const G*>(part.grad);
  M *m = static_cast<M*>(part.m), *v = static_cast<M*>(part.v);

  float p4[kSteps][kElements], g4[kSteps][kElements], m4[kSteps][kElements], v4[kSteps][kElements];
  const auto first_of = [&](int s) {
    return ((static_cast<int64_t>(block) * kSteps + s) * kThreads + threadIdx.x) * kElements;
  };
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t first = first_of(s);
    if (first + kElements > count) continue;
    p.load(first, p4[s]);
    load_four(m + first, m4[s]), load_four(v + first, v4[s]), load_four(grad + first, g4[s]);
  }
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    const int64_t first = first_of(s);
    if (first >= count) return;
    const float keep = first < part.decayed ? update.keep : 1.0f;
    Philox::Words words{};
    if constexpr (sizeof(M) == 2)
      words =
          Philox(part.random_key, step).bits(static_cast<uint64_t>((part.first_element + first) / kElements));
    if (first + kElements <= count) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) p4[s][i] = update(p4[s][i], g4[s][i], m4[s][i], v4[s][i], keep);
      p.store(first, p4[s]);
      store_moments(m + first, m4[s], words, 0);
      store_moments(v + first, v4[s], words, 16);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int64_t one = first + i;
      if (one >= count) return;
      float m32 = static_cast<float>(m[one]), v32 = static_cast<float>(v[one]);
      p.store_one(one, update(p.load_one(one), static_cast<float>(grad[one]), m32, v32, keep));
      m[one] = moment_of<M>(m32, words[i]), v[one] = moment_of<M>(v32, words[i] >> 16);
    }
  }
}

}  // namespace

void CudaBackend::run_op(const AdamW& a, const Launch& on) {
  const Update update = cuda::adamw::update_of(a);
  Parts parts{};
  int64_t blocks = 0;
  const auto launch = [&] {
    if (blocks == 0) return;
    cuda::adamw::with_types(a.parts.front(), [&]<class T, class G, class M>() {
      adamw_kernel<T, G, M><<<blocks, kThreads, 0, on.stream>>>(parts, a.grad_norm.as<float>(),
                                                                a.grad_norm.numel(), a.verdict.as<float>(),
                                                                update, static_cast<uint64_t>(a.step));
    });
    TESSERA_CUDA_LAUNCHED();
    parts.count = 0, blocks = 0;
  };
  for (const AdamW::Part& part : a.parts) {
    check_aligned(
        a.kName,
        {{"param", part.param}, {"low", part.low}, {"grad", part.grad}, {"m", part.m}, {"v", part.v}});
    const int64_t count = part.param.numel(), more = cuda::divide_up(count, kThreads * kElements * kSteps);
    if (count == 0) continue;
    if (parts.count == kMaxParts || blocks + more > INT32_MAX) launch();
    blocks += more;
    parts.part[parts.count++] = {.param = part.param.data,
                                 .low = part.low.data,
                                 .grad = part.grad.data,
                                 .m = part.m.data,
                                 .v = part.v.data,
                                 .count = count,
                                 .decayed = part.decayed,
                                 .first_element = part.first_element,
                                 .random_key = part.random_key,
                                 .end_block = static_cast<uint32_t>(blocks)};
  }
  launch();
}

}  // namespace tessera
