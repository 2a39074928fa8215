#include "kernels/cuda/gemm.h"

#include <cstdint>

#include "kernels/cuda/cuda_check.h"
#include "kernels/workspace.h"

namespace tessera::cuda {
namespace {

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kI32:
      break;
  }
  fail("a matrix product wants fp32 or bf16, found {}", name_of(dtype));
}

// The largest power of two up to 256 that divides the address: some algorithms need aligned addresses.
uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data) | 256;
  return static_cast<uint32_t>(address & -address);
}

// A cuBLASLt descriptor that is destroyed with its owner.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
struct Destroy {
  using pointer = Handle;
  void operator()(Handle handle) const { kDestroy(handle); }
};
using MatmulDesc = std::unique_ptr<void, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<void, Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<void, Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

template <class V>
void set(const MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const V& value) {
  TESSERA_CUDA(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof value));
}

template <class V>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const V& value) {
  TESSERA_CUDA(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

// cuBLASLt counts columns first, so it sees a row-major array as its transpose: our rows are its columns.
Layout layout_of(DType dtype, int64_t row, int64_t rows, const GemmMatrix& matrix, int batch) {
  cublasLtMatrixLayout_t raw = nullptr;
  TESSERA_CUDA(cublasLtMatrixLayoutCreate(&raw, cuda_type(dtype), row, rows, matrix.ld));
  Layout layout(raw);
  if (batch > 1) {
    TESSERA_CUDA(
        cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
    TESSERA_CUDA(cublasLtMatrixLayoutSetAttribute(raw, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                  &matrix.batch_stride, sizeof matrix.batch_stride));
  }
  return layout;
}

// Pointers that the epilogue reads; they differ from call to call.
void set_epilogue_pointers(const MatmulDesc& desc, const Gemm& gemm) {
  if (gemm.bias) set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias);
  if (gemm.aux) set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, gemm.aux);
}

}  // namespace

// Everything that cuBLASLt's choice of an algorithm depends on.
struct GemmRunner::Key {
  DType dtype;
  int64_t m, n, k;
  struct Matrix {
    int64_t ld, batch_stride;
    bool transposed;
    uint32_t alignment;
    explicit Matrix(const GemmMatrix& from)
        : ld(from.ld),
          batch_stride(from.batch_stride),
          transposed(from.transposed),
          alignment(alignment_of(from.data)) {}
    auto operator<=>(const Matrix&) const = default;
  } a, b, d;
  uint32_t c_alignment;
  int batch;
  cublasLtEpilogue_t epilogue;
  auto operator<=>(const Key&) const = default;
};

struct GemmRunner::Plan {
  MatmulDesc desc;
  Layout a, b, d;
  bool possible = false;
  cublasLtMatmulAlgo_t algorithm{};
};

GemmRunner::GemmRunner() : plans_(std::make_unique<std::map<Key, Plan>>()) {
  TESSERA_CUDA(cublasLtCreate(&handle_));
}

GemmRunner::~GemmRunner() {
  plans_.reset();
  cublasLtDestroy(handle_);
}

const GemmRunner::Plan& GemmRunner::plan_for(const Gemm& gemm) {
  const uint32_t c_alignment = gemm.c ? alignment_of(gemm.c) : alignment_of(gemm.d.data);
  const Key key{
      gemm.dtype,          gemm.m,      gemm.n,     gemm.k,       Key::Matrix(gemm.a), Key::Matrix(gemm.b),
      Key::Matrix(gemm.d), c_alignment, gemm.batch, gemm.epilogue};
  if (const auto found = plans_->find(key); found != plans_->end()) return found->second;

  Plan plan;
  cublasLtMatmulDesc_t raw_desc = nullptr;
  TESSERA_CUDA(cublasLtMatmulDescCreate(&raw_desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan.desc.reset(raw_desc);
  const cublasOperation_t op_a = gemm.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = gemm.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, op_b);  // d^T = b^T a^T: the factors trade places
  set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, op_a);
  set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, gemm.epilogue);
  if (gemm.aux) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, gemm.n);
  set_epilogue_pointers(plan.desc, gemm);
  plan.a = layout_of(gemm.dtype, gemm.a.transposed ? gemm.m : gemm.k, gemm.a.transposed ? gemm.k : gemm.m,
                     gemm.a, gemm.batch);
  plan.b = layout_of(gemm.dtype, gemm.b.transposed ? gemm.k : gemm.n, gemm.b.transposed ? gemm.n : gemm.k,
                     gemm.b, gemm.batch);
  plan.d = layout_of(gemm.dtype, gemm.n, gemm.m, gemm.d, gemm.batch);

  cublasLtMatmulPreference_t raw_preference = nullptr;
  TESSERA_CUDA(cublasLtMatmulPreferenceCreate(&raw_preference));
  const Preference preference(raw_preference);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspaceBytes));
  // Where k is split, the parts are added in fp32: the other schemes would round each of them to bf16.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b.alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a.alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c_alignment);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.d.alignment);

  // The heuristic's first answer and no timing: two runs must make the same choice to give the same bits.
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan.desc.get(), plan.b.get(), plan.a.get(), plan.d.get(),
                                     plan.d.get(), preference.get(), 1, &result, &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) TESSERA_CUDA(status);
  plan.possible = status == CUBLAS_STATUS_SUCCESS && found > 0 && result.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = result.algo;
  return plans_->emplace(key, std::move(plan)).first->second;
}

bool GemmRunner::try_run(const Gemm& gemm, void* workspace, cudaStream_t stream) {
  const Plan& plan = plan_for(gemm);
  if (!plan.possible) return false;
  set_epilogue_pointers(plan.desc, gemm);
  const void* c = gemm.c ? gemm.c : gemm.d.data;
  TESSERA_CUDA(cublasLtMatmul(handle_, plan.desc.get(), &gemm.alpha, gemm.b.data, plan.b.get(), gemm.a.data,
                              plan.a.get(), &gemm.beta, c, plan.d.get(), gemm.d.data, plan.d.get(),
                              &plan.algorithm, workspace, kGemmWorkspaceBytes, stream));
  return true;
}

void GemmRunner::run(const Gemm& gemm, void* workspace, cudaStream_t stream) {
  check(try_run(gemm, workspace, stream),
        "cuBLASLt has no algorithm for a {} product [{}, {}] x [{}, {}], batch {}", name_of(gemm.dtype),
        gemm.m, gemm.k, gemm.k, gemm.n, gemm.batch);
}

}  // namespace tessera::cuda
