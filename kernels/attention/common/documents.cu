// attn_documents: AttnMask::documents from cumulative lengths.
//
//   one thread a token t of the batch x tokens, in sequence b = t / tokens:
//     d = the last document with cumulative[d] <= t, by bisection
//     documents[t] = cumulative[d], cumulative[d + 1], cut to the sequence and counted from its beginning
#include <algorithm>
#include <limits>

#include "kernels/attention/common/launch.cuh"

namespace tessera::attention {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    documents_kernel(const int32_t* cumulative, int count, int tokens, int all_tokens, int32_t* documents) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= all_tokens) return;
  const int token = static_cast<int>(thread), sequence_begin = token / tokens * tokens;
  int found = 0, above = count;  // cumulative[found] <= token < cumulative[above]
  while (above - found > 1) {
    const int middle = found + (above - found) / 2;
    (cumulative[middle] <= token ? found : above) = middle;
  }
  documents[2 * thread] = max(cumulative[found] - sequence_begin, 0);
  documents[2 * thread + 1] = min(cumulative[found + 1] - sequence_begin, tokens);
}

bool aligned(const void* data) {
  return data != nullptr && reinterpret_cast<uintptr_t>(data) % sizeof(int32_t) == 0;
}

}  // namespace
}  // namespace tessera::attention

extern "C" AttnStatus attn_documents(const int32_t* cumulative, int64_t count, int64_t batch, int64_t tokens,
                                     int32_t* documents, CUstream_st* stream) {
  using namespace tessera::attention;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();  // what `cumulative` can count
  if (count <= 0 || count >= kMost || batch <= 0 || tokens <= 0 || batch > kMost / tokens)
    return ATTN_BAD_SHAPE;
  if (!aligned(cumulative) || !aligned(documents)) return ATTN_BAD_ALIGNMENT;
  const int64_t all_tokens = batch * tokens;
  return launch(documents_kernel, dim3(static_cast<unsigned>((all_tokens + kThreads - 1) / kThreads)),
                kThreads, 0, stream, cumulative, static_cast<int>(count), static_cast<int>(tokens),
                static_cast<int>(all_tokens), documents);
}
