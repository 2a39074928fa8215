// Embedding. The forward gathers rows. The backward scatters them, and several rows may share a token:
// rows are sorted by token first, so that a token's rows lie side by side, in the order of their
// positions, and their sum has a fixed order. Where positions are given, as
// within documents, several rows of a sequence may share one: their gradients are scattered in the same way,
// sorted by position. Without, a position has one row in every sequence.
//
// The sorted rows are cut into windows of kEmbeddingWindow, each summed by one block, so that a token that
// owns a tenth of a batch is shared by hundreds of blocks. A run of equal tokens that lies within one
// window is added to the table at once. A run that crosses windows leaves one partial sum in each; then
// the block of the window where it begins adds them up, first to last.
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "kernels/base/documents.h"
#include "kernels/base/ptx.cuh"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack.cuh"
#include "kernels/workspace.h"

namespace tessera {
namespace {

constexpr int kThreads = 256;
constexpr int kWindow = static_cast<int>(cuda::kEmbeddingWindow);
// A window's partial sums: of a run that began in an earlier window, and of one that continues in the next.
enum { kHead, kTail, kPartials };

template <class T>
__global__ void embedding_forward_kernel(const int32_t* tokens, const T* token_table, const T* position_table,
                                         const int32_t* positions, const int32_t* starts, float scale, T* y,
                                         int64_t N, int64_t Tokens, int64_t C) {
  constexpr int kWidth = kPackWidth<T>;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  if (i >= N * C) return;
  const int64_t n = i / C, c = i - n * C;
  if (starts && __ldcg(starts + n / Tokens) < 0) return store_pack(y + i, uint4{});
  const int64_t token = __ldcg(tokens + n);
  if (!position_table && scale == 1) return store_pack(y + i, load_pack(token_table + token * C + c));
  float sum[kWidth], position[kWidth] = {};
  load_floats(token_table + token * C + c, sum);
  if (position_table)
    load_floats(position_table + given_position(positions, starts, n, Tokens) * C + c, position);
#pragma unroll
  for (int j = 0; j < kWidth; ++j) sum[j] = scale * sum[j] + position[j];
  store_floats(y + i, sum);
}

__global__ void number_rows_kernel(int32_t* rows, int N) {
  const int n = blockIdx.x * kThreads + threadIdx.x;
  if (n < N) rows[n] = n;
}

__global__ void real_keys_kernel(const int32_t* keys, int32_t* real, int N) {
  const int n = blockIdx.x * kThreads + threadIdx.x;
  if (n < N) real[n] = max(keys[n], 0);
}

template <class T>
__device__ void add_to_table(T* entry, const float (&sum)[kPackWidth<T>]) {
  float value[kPackWidth<T>];
  load_floats(entry, value);
#pragma unroll
  for (int i = 0; i < kPackWidth<T>; ++i) value[i] += sum[i];
  store_floats(entry, value);
}

// factors: of each row; none: `factor_of_all`. partials: [windows][kPartials][C]. Grid: (windows, columns of
// threads across the channels).
template <class T>
__global__ void sum_windows_kernel(const int32_t* sorted_tokens, const int32_t* sorted_rows, const T* dy,
                                   const float* factors, float factor_of_all, T* d_token_table,
                                   float* partials, int N, int64_t C) {
  constexpr int kWidth = kPackWidth<T>;
  constexpr int kLoads = 8;  // in flight for each thread
  static_assert(kWindow % kLoads == 0);
  __shared__ int32_t tokens[kWindow], rows[kWindow];
  const int first = blockIdx.x * kWindow, count = min(kWindow, N - first);
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    tokens[i] = sorted_tokens[first + i];
    rows[i] = sorted_rows[first + i];
  }
  __syncthreads();  // every thread reads the whole window's tokens and rows
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kWidth;
  if (c >= C) return;
  const bool from_before = first > 0 && sorted_tokens[first - 1] == tokens[0];
  const bool goes_on = first + count < N && sorted_tokens[first + count] == tokens[count - 1];
  float* partial = partials + blockIdx.x * kPartials * C + c;

  float sum[kWidth] = {};
  bool in_first_run = true;
  for (int start = 0; start < count; start += kLoads) {
    uint4 raw[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j)
      raw[j] = start + j < count ? load_pack(dy + static_cast<int64_t>(rows[start + j]) * C + c) : uint4{};
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int i = start + j;
      if (i >= count) break;
      float value[kWidth];
      unpack<T>(raw[j], value);
      const float factor = factors ? factors[rows[i]] : factor_of_all;
#pragma unroll
      for (int v = 0; v < kWidth; ++v) sum[v] = fmaf(factor, value[v], sum[v]);
      const bool last = i == count - 1;
      if (!last && tokens[i + 1] == tokens[i]) continue;
      if ((in_first_run && from_before) || (last && goes_on)) {
        float* to = partial + (in_first_run && from_before ? kHead : kTail) * C;
#pragma unroll
        for (int v = 0; v < kWidth; ++v) to[v] = sum[v];
      } else {
        add_to_table(d_token_table + tokens[i] * C + c, sum);
      }
#pragma unroll
      for (int v = 0; v < kWidth; ++v) sum[v] = 0;
      in_first_run = false;
    }
  }
}

// The block of a window in which a crossing run begins adds the run's partial sums.
template <class T>
__global__ void add_crossing_runs_kernel(const int32_t* sorted_tokens, const float* partials,
                                         T* d_token_table, int N, int64_t C) {
  constexpr int kWidth = kPackWidth<T>;
  const int first = blockIdx.x * kWindow, end = first + kWindow;
  if (end >= N) return;
  const int32_t token = sorted_tokens[end - 1];
  if (sorted_tokens[end] != token) return;                     // nothing crosses
  if (first > 0 && sorted_tokens[first - 1] == token) return;  // it began in an earlier window
  int low = end,
      high = N;  // the run ends between them: tokens before `low` are its own, from `high` on larger
  while (low < high) {
    const int middle = low + (high - low) / 2;
    sorted_tokens[middle] > token ? high = middle : low = middle + 1;
  }
  const int last_window = (low - 1) / kWindow;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x) * kWidth;
  if (c >= C) return;

  float sum[kWidth];
  const float* tail = partials + (static_cast<int64_t>(blockIdx.x) * kPartials + kTail) * C + c;
#pragma unroll
  for (int v = 0; v < kWidth; ++v) sum[v] = tail[v];
#pragma unroll 8
  for (int window = blockIdx.x + 1; window <= last_window; ++window) {
    const float* head = partials + (static_cast<int64_t>(window) * kPartials + kHead) * C + c;
#pragma unroll
    for (int v = 0; v < kWidth; v += 4) {
      const float4 four = *reinterpret_cast<const float4*>(head + v);
      sum[v] += four.x, sum[v + 1] += four.y, sum[v + 2] += four.z, sum[v + 3] += four.w;
    }
  }
  add_to_table(d_token_table + token * C + c, sum);
}

// d_position_table[t] += sum over b of dy[b, t]
template <class T>
__global__ void sum_positions_kernel(const T* dy, T* d_position_table, int64_t B, int64_t TC) {
  constexpr int kWidth = kPackWidth<T>;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWidth;
  if (i >= TC) return;
  float sum[kWidth] = {};
#pragma unroll 8
  for (int64_t b = 0; b < B; ++b) {
    float value[kWidth];
    load_floats(dy + b * TC + i, value);
#pragma unroll
    for (int v = 0; v < kWidth; ++v) sum[v] += value[v];
  }
  add_to_table(d_position_table + i, sum);
}

// The parts of a workspace of embedding_backward_bytes()
struct Scratch {
  int32_t *rows, *sorted_keys, *sorted_rows;  // [N]; rows: 0, 1, 2, ...
  char* sort;
  union {
    int32_t* positions;  // [N], until they are sorted
    float* partials;     // [windows][kPartials][C]
  };

  Scratch(char* at, int64_t N) {
    const auto take = [&](int64_t bytes) {
      char* taken = at;
      at += cuda::divide_up(bytes, 256) * 256;
      return taken;
    };
    rows = reinterpret_cast<int32_t*>(take(N * 4));
    sorted_keys = reinterpret_cast<int32_t*>(take(N * 4));
    sorted_rows = reinterpret_cast<int32_t*>(take(N * 4));
    sort = take(cuda::embedding_sort_bytes(N));
    partials = reinterpret_cast<float*>(at);
  }
};

// What rows are multiplied by: each by its own, or all by one
struct Factors {
  const float* of_rows = nullptr;  // [N]
  float of_all = 1;
};

// table[keys[n]] += factor dy[n] for all N rows; keys are below `end`.
void scatter_rows(const char* op, const int32_t* keys, int64_t end, const Tensor& dy, const Factors& factors,
                  const Tensor& table, const Scratch& scratch, cudaStream_t stream) {
  const int64_t C = table.shape[1];
  const int N = static_cast<int>(dy.numel() / C);
  number_rows_kernel<<<cuda::divide_up(N, kThreads), kThreads, 0, stream>>>(scratch.rows, N);
  TESSERA_CUDA_LAUNCHED();
  // A radix sort is stable: the rows of a key stay in their order.
  const int bits = std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(end - 1))));
  size_t sort_bytes = 0;
  const auto sort = [&](void* temporary) {
    TESSERA_CUDA(cub::DeviceRadixSort::SortPairs(temporary, sort_bytes,
                                                 reinterpret_cast<const uint32_t*>(keys),
                                                 reinterpret_cast<uint32_t*>(scratch.sorted_keys),
                                                 scratch.rows, scratch.sorted_rows, N, 0, bits, stream));
  };
  sort(nullptr);
  check(static_cast<int64_t>(sort_bytes) <= cuda::embedding_sort_bytes(N),
        "{}: the sort of {} rows needs {} bytes", op, N, sort_bytes);
  sort(scratch.sort);
  with_real_type(dy.dtype, [&]<class T>() {
    const int64_t threads = std::min<int64_t>(kThreads, cuda::divide_up(C, kPackWidth<T>));
    const dim3 grid(cuda::divide_up(N, kWindow), cuda::divide_up(C, threads * kPackWidth<T>));
    sum_windows_kernel<<<grid, threads, 0, stream>>>(scratch.sorted_keys, scratch.sorted_rows, dy.as<T>(),
                                                     factors.of_rows, factors.of_all, table.as<T>(),
                                                     scratch.partials, N, C);
    TESSERA_CUDA_LAUNCHED();
    add_crossing_runs_kernel<<<grid, threads, 0, stream>>>(scratch.sorted_keys, scratch.partials,
                                                           table.as<T>(), N, C);
    TESSERA_CUDA_LAUNCHED();
  });
}

}  // namespace

void CudaBackend::run_op(const EmbeddingForward& a, const Launch& on) {
  check_packs(a.kName, {{"token_table", a.token_table}, {"position_table", a.position_table}, {"y", a.y}});
  const int64_t N = a.tokens.numel(), Tokens = a.y.shape[1], C = a.y.shape[2];
  with_real_type(a.y.dtype, [&]<class T>() {
    cuda::launch(embedding_forward_kernel<T>,
                 {.blocks = cuda::divide_up(N * C, kThreads * kPackWidth<T>),
                  .threads = kThreads,
                  .overlap = overlaps()},
                 on.stream, a.tokens.as<int32_t>(), a.token_table.as<T>(), a.position_table.as<T>(),
                 a.positions.as<int32_t>(), a.starts.as<int32_t>(), a.scale, a.y.as<T>(), N, Tokens, C);
  });
}

void CudaBackend::run_op(const EmbeddingBackward& a, const Launch& on) {
  const char* op = a.kName;
  check_packs(op,
              {{"dy", a.dy}, {"d_token_table", a.d_token_table}, {"d_position_table", a.d_position_table}});
  const int64_t B = a.dy.shape[0], Tokens = a.dy.shape[1], C = a.dy.shape[2], V = a.d_token_table.shape[0];
  check(B * Tokens < INT32_MAX, "{}: supports fewer than 2^31 rows, found {}", op, a.dy.to_string());
  const int N = static_cast<int>(B * Tokens);
  const Scratch scratch(on.scratch(op, cuda::embedding_backward_bytes(N, C)), N);
  scatter_rows(op, a.tokens.as<int32_t>(), V, a.dy, {.of_all = a.scale}, a.d_token_table, scratch, on.stream);
  if (!a.d_position_table) return;
  if (a.positions)
    return scatter_rows(op, a.positions.as<int32_t>(), a.d_position_table.shape[0], a.dy, {},
                        a.d_position_table, scratch, on.stream);
  with_real_type(a.dy.dtype, [&]<class T>() {
    sum_positions_kernel<<<cuda::divide_up(Tokens * C, kThreads * kPackWidth<T>), kThreads, 0, on.stream>>>(
        a.dy.as<T>(), a.d_position_table.as<T>(), B, Tokens * C);
    TESSERA_CUDA_LAUNCHED();
  });
}

void cuda::add_rows_to_table(const char* op, const Tensor& keys, const Tensor& rows, const float* factors,
                             const Tensor& table, const Launch& on) {
  const int64_t N = rows.shape[0], C = rows.shape[1];
  const Scratch scratch(on.scratch(op, cuda::embedding_backward_bytes(N, C)), N);
  real_keys_kernel<<<cuda::divide_up(N, kThreads), kThreads, 0, on.stream>>>(
      keys.as<int32_t>(), scratch.positions, static_cast<int>(N));
  TESSERA_CUDA_LAUNCHED();
  scatter_rows(op, scratch.positions, table.shape[0], rows, {.of_rows = factors}, table, scratch, on.stream);
}

}  // namespace tessera
