// The losses of pairs. A block looks at one row, and is done unless a pair begins there. Then it adds up the
// log-probabilities of its first document and of the second one behind it, in double and in a fixed order;
// each thread finds the pair's loss from the sums, and the block writes the weights of both.
#include "kernels/base/documents.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_check.h"

namespace tessera {
namespace {

constexpr int kThreads = 128;

struct Rows {
  const int32_t *documents, *kinds, *targets;
  const float *losses, *reference, *stored, *divergence, *gradient_scale, *pair_weights;
};

// Every thread gets the sums over the rows from `begin` to `end`.
__device__ PreferenceSide side_of(const Rows& rows, int64_t begin, int64_t end, double (&sums)[3][kThreads]) {
  double logp = 0, reference = 0, tokens = 0;
  for (int64_t n = begin + threadIdx.x; n < end; n += kThreads) {
    if (rows.targets[n] == kNoTarget) continue;
    logp -= rows.losses[n];
    if (rows.reference) reference -= rows.reference[n];
    tokens += 1;
  }
  __syncthreads();  // the sums of the other side have been read
  sums[0][threadIdx.x] = logp, sums[1][threadIdx.x] = reference, sums[2][threadIdx.x] = tokens;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half)
      for (int i = 0; i < 3; ++i) sums[i][threadIdx.x] += sums[i][threadIdx.x + half];
  }
  __syncthreads();
  PreferenceSide side;
  side.logp = sums[0][0], side.reference = sums[1][0], side.tokens = sums[2][0];
  if (rows.stored) side.reference = stored_reference(rows.stored, begin);
  return side;
}

__global__ void __launch_bounds__(kThreads)
    preference_kernel(Rows rows, PreferenceRule rule, int64_t N, int64_t T, float* weights, float* figures) {
  __shared__ double sums[3][kThreads];
  const int64_t n = blockIdx.x;
  if (!begins_pair(rows.documents, rows.kinds, n, T)) return;
  const int64_t middle = end_of_document(rows.documents, n, T);
  if (middle >= n - n % T + T) return;  // the host has refused a first document without a second one
  const int64_t end = end_of_document(rows.documents, middle, T);
  const PreferenceSide chosen = side_of(rows, n, middle, sums);
  const PreferenceSide rejected = side_of(rows, middle, end, sums);
  PreferencePair pair{chosen, rejected};
  pair.is_desirable = rows.kinds[n] != static_cast<int32_t>(DocumentKind::kUndesirable);
  if (rows.divergence) pair.divergence = mean_divergence(*rows.divergence, *rows.gradient_scale);
  PreferenceFigures found = preference_figures(rule, pair);
  if (rows.pair_weights) found.weigh(rows.pair_weights[n]);
  if (static_cast<int>(threadIdx.x) < PreferenceFigures::kCount)
    figures[threadIdx.x * N + n] = static_cast<float>(found.at(static_cast<int>(threadIdx.x)));
  for (int64_t i = n + threadIdx.x; i < end; i += kThreads)
    weights[i] = static_cast<float>(i < middle ? -found.d_chosen : -found.d_rejected);
}

}  // namespace

void CudaBackend::run_op(const PreferenceLoss& a, const Launch& on) {
  const int64_t N = a.kinds.numel();
  TESSERA_CUDA(cudaMemsetAsync(a.weights.data, 0, a.weights.bytes(), on.stream));
  TESSERA_CUDA(cudaMemsetAsync(a.figures.data, 0, a.figures.bytes(), on.stream));
  const Rows rows{a.documents.as<int32_t>(), a.kinds.as<int32_t>(),        a.targets.as<int32_t>(),
                  a.losses.as<float>(),      a.reference.as<float>(),      a.stored.as<float>(),
                  a.divergence.as<float>(),  a.gradient_scale.as<float>(), a.pair_weights.as<float>()};
  preference_kernel<<<N, kThreads, 0, on.stream>>>(rows, a.rule, N, a.kinds.shape[1], a.weights.as<float>(),
                                                   a.figures.as<float>());
  TESSERA_CUDA_LAUNCHED();
}

}  // namespace tessera
