// New keys and values to the cache: a thread copies a pack of each, or single elements where heads are no
// whole packs.
#include "kernels/base/ptx.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;

// k and v [B, T, K, D] -> rows starts[b] + t of caches [B, capacity, K, D], in units of kStep elements. A row
// beyond the capacity is not written, unless it is a ring.
template <class T, int kStep>
__global__ __launch_bounds__(kThreads) void cache_append_kernel(View<const T> k, View<const T> v,
                                                                const int32_t* starts, T* k_cache, T* v_cache,
                                                                int64_t steps, int Tokens, int heads, int D,
                                                                int64_t capacity, bool ring) {
  const int64_t step = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  if (step >= steps) return;
  const int64_t i = step * kStep, row = static_cast<int64_t>(heads) * D, n = i / row;  // n = b T + t
  const int of_row = static_cast<int>(i - n * row), head = of_row / D, d = of_row - head * D;
  const int64_t b = n / Tokens, start = __ldcg(starts + b);
  int64_t place = start + n - b * Tokens;
  if (ring) place %= capacity;
  if (start < 0 || place >= capacity) return;
  const int64_t to = (b * capacity + place) * row + of_row;
  const T *from_k = k.row_begin(n) + head * k.head + d, *from_v = v.row_begin(n) + head * v.head + d;
  if constexpr (kStep == 1) {
    k_cache[to] = __ldcg(from_k), v_cache[to] = __ldcg(from_v);
  } else {
    const uint4 of_k = __ldcg(reinterpret_cast<const uint4*>(from_k)),
                of_v = __ldcg(reinterpret_cast<const uint4*>(from_v));
    store_pack(k_cache + to, of_k), store_pack(v_cache + to, of_v);
  }
}

}  // namespace

void CudaBackend::run_op(const CacheAppend& a, const Launch& on) {
  const int64_t Tokens = a.k.tensor.shape[1], capacity = a.k_cache.shape[1], K = a.k_cache.shape[2],
                D = a.k_cache.shape[3], elements = a.k_cache.shape[0] * Tokens * K * D;
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; };
  const bool whole = aligned(a.k.tensor) && aligned(a.v.tensor) && aligned(a.k_cache) && aligned(a.v_cache);
  with_real_type(a.k_cache.dtype, [&]<class T>() {
    const auto append = [&]<int kStep>() {
      cuda::launch(
          cache_append_kernel<T, kStep>,
          {.blocks = cuda::divide_up(elements / kStep, kThreads), .threads = kThreads, .overlap = overlaps()},
          on.stream, heads_of<const T>(a.k), heads_of<const T>(a.v), a.starts.as<int32_t>(),
          a.k_cache.as<T>(), a.v_cache.as<T>(), elements / kStep, static_cast<int>(Tokens),
          static_cast<int>(K), static_cast<int>(D), capacity, a.ring);
    };
    whole&& D % kPackWidth<T> == 0 ? append.template operator()<kPackWidth<T>>()
                                   : append.template operator()<1>();
  });
  complete_means(a, on);
}

}  // namespace tessera
