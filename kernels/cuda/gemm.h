// Matrix products through cuBLASLt: described row-major, planned once per shape, enqueued on a stream.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <map>
#include <memory>

#include "kernels/base/tensor.h"

namespace tessera::cuda {

struct GemmMatrix {
  void* data = nullptr;
  int64_t ld = 0;            // elements from one stored row to the next
  bool transposed = false;   // stored as [columns, rows]
  int64_t batch_stride = 0;  // elements from one product of a batch to the next
};

// d[m, n] = epilogue(alpha a[m, k] b[k, n] + beta c[m, n]); c is laid out as d and may be d. Arithmetic is
// fp32, no TF32, and d is rounded once.
struct Gemm {
  DType dtype;
  int64_t m, n, k;
  GemmMatrix a, b, d;
  void* c = nullptr;  // none: d
  float alpha = 1, beta = 0;
  int batch = 1;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;  // [n], added to every row
  void* aux = nullptr;   // [m, n] contiguous: the input of a GELU, written or read
};

class GemmRunner {
 public:
  GemmRunner();
  ~GemmRunner();
  GemmRunner(const GemmRunner&) = delete;
  GemmRunner& operator=(const GemmRunner&) = delete;

  // False if cuBLASLt has no algorithm for it, as with odd sizes and an epilogue; nothing is then enqueued.
  bool try_run(const Gemm& gemm, void* workspace, cudaStream_t stream);
  void run(const Gemm& gemm, void* workspace, cudaStream_t stream);  // fails where try_run() is false

 private:
  struct Key;
  struct Plan;
  const Plan& plan_for(const Gemm& gemm);

  cublasLtHandle_t handle_ = nullptr;
  std::unique_ptr<std::map<Key, Plan>> plans_;
};

}  // namespace tessera::cuda
