// The functions of cuBLASLt that the project calls: matrix products in fp32 by the BLAS of the CPU backend,
// with the epilogues and the refusals that cuBLASLt documents.
#include <cblas.h>
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "tests/emulator/races.h"
#include "tests/emulator/runtime.h"

namespace {

struct Desc {
  int32_t transa = CUBLAS_OP_N, transb = CUBLAS_OP_N, epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void *bias = nullptr, *a_scale = nullptr, *b_scale = nullptr;
  void* aux = nullptr;
  int64_t aux_ld = 0;
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t ld, stride = 0;
  int32_t batch = 1;
};
struct Algorithm {
  int32_t id;
  int32_t attributes[12];
};
constexpr int kAlgorithms = 3;  // all the same; the last says that it splits the sum

Algorithm algorithm(int id) {
  Algorithm made{.id = id, .attributes = {}};
  if (id == kAlgorithms) {
    made.attributes[CUBLASLT_ALGO_CONFIG_SPLITK_NUM] = 2;
    made.attributes[CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME] = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  }
  return made;
}

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
int64_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF ? 2 : 1; }

float load(cudaDataType_t type, const void* data, int64_t at) {
  const auto fp8 = [&](__nv_fp8_interpretation_t format) {
    return __half2float(__nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(data)[at], format));
  };
  switch (type) {
    case CUDA_R_32F:
      return static_cast<const float*>(data)[at];
    case CUDA_R_16BF:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
    case CUDA_R_8F_E4M3:
      return fp8(__NV_E4M3);
    default:
      return fp8(__NV_E5M2);
  }
}
void store(cudaDataType_t type, void* data, int64_t at, float value) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(data)[at] = value;
  } else {
    static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16(value);
  }
}

float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }
float gelu_slope(float x) {
  const float t = std::tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

const void* address(const Layout& layout, const void* data, int64_t element) {
  return static_cast<const char*>(data) + element * size_of(layout.type);
}
size_t bytes_of_column(const Layout& layout) {
  return layout.rows * static_cast<size_t>(size_of(layout.type));
}

// Column-first, as a dense array
std::vector<float> read(const Layout& layout, const void* data, int batch) {
  std::vector<float> values(layout.rows * layout.columns);
  for (uint64_t c = 0; c < layout.columns; ++c) {
    const int64_t column = batch * layout.stride + static_cast<int64_t>(c) * layout.ld;
    emulator::reads(address(layout, data, column), bytes_of_column(layout));
    for (uint64_t r = 0; r < layout.rows; ++r)
      values[c * layout.rows + r] = load(layout.type, data, column + static_cast<int64_t>(r));
  }
  return values;
}

// Of products in FP8 on GPUs of 8.9 and 9.0 (cuBLAS 13.0, cublasLtMatmul()): A transposed, B not, the
// dimensions multiples of 16, at most one of them e5m2, and C and D of a wider type
bool supported(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  if (is_fp8(a.type) != is_fp8(b.type) || is_fp8(d.type)) return false;
  if (!is_fp8(a.type)) return true;
  const bool both_wide = a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2;
  const auto aligned = [](const Layout& l) { return l.ld * size_of(l.type) % 16 == 0; };
  return !both_wide && desc.transa == CUBLAS_OP_T && desc.transb == CUBLAS_OP_N && a.rows % 16 == 0 &&
         d.rows % 16 == 0 && aligned(a) && aligned(b) && aligned(d);
}

void multiply(const Desc& desc, float alpha, const void* a, const Layout& la, const void* b, const Layout& lb,
              float beta, const void* c, const Layout& lc, void* d, const Layout& ld) {
  const float scale = (desc.a_scale ? *static_cast<const float*>(desc.a_scale) : 1) *
                      (desc.b_scale ? *static_cast<const float*>(desc.b_scale) : 1);
  const auto m = static_cast<int>(ld.rows), n = static_cast<int>(ld.columns);
  const auto k = static_cast<int>(desc.transa == CUBLAS_OP_N ? la.columns : la.rows);
  for (int batch = 0; batch < ld.batch; ++batch) {
    const std::vector<float> left = read(la, a, batch), right = read(lb, b, batch);
    std::vector<float> sums = beta != 0 ? read(lc, c, batch) : std::vector<float>(ld.rows * ld.columns);
    cblas_sgemm(CblasColMajor, desc.transa == CUBLAS_OP_N ? CblasNoTrans : CblasTrans,
                desc.transb == CUBLAS_OP_N ? CblasNoTrans : CblasTrans, m, n, k, alpha * scale, left.data(),
                static_cast<int>(la.rows), right.data(), static_cast<int>(lb.rows), beta, sums.data(), m);
    for (int column = 0; column < n; ++column) {
      emulator::writes(address(ld, d, batch * ld.stride + column * ld.ld), bytes_of_column(ld));
      for (int row = 0; row < m; ++row) {
        float value = sums[static_cast<size_t>(column) * ld.rows + static_cast<size_t>(row)];
        const int64_t at_aux = column * desc.aux_ld + row;
        if (desc.bias) value += load(ld.type, desc.bias, row);
        switch (desc.epilogue) {
          case CUBLASLT_EPILOGUE_GELU_AUX:
          case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
            store(ld.type, desc.aux, at_aux, value);
            value = gelu(value);
            break;
          case CUBLASLT_EPILOGUE_DGELU:
            value *= gelu_slope(load(ld.type, desc.aux, at_aux));
            break;
          default:
            break;
        }
        store(ld.type, d, batch * ld.stride + column * ld.ld + row, value);
      }
    }
  }
}

bool has_bias(int32_t epilogue) {
  return epilogue == CUBLASLT_EPILOGUE_BIAS || epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

Algorithm* of(cublasLtMatmulAlgo_t* algo) { return reinterpret_cast<Algorithm*>(algo); }
const Algorithm* of(const cublasLtMatmulAlgo_t* algo) { return reinterpret_cast<const Algorithm*>(algo); }
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class T>
cublasStatus_t set(T& to, const void* from, size_t size) {
  if (size != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion() { return 13000; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "a status of the emulated cuBLASLt"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<int*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t, cudaDataType_t) {
  *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete reinterpret_cast<Desc*>(desc);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t raw,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t size) {
  Desc& desc = *reinterpret_cast<Desc*>(raw);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(desc.transa, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(desc.transb, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(desc.epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(desc.bias, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return set(desc.aux, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return set(desc.aux_ld, value, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
      return set(desc.a_scale, value, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
      return set(desc.b_scale, value, size);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:  // sums are fp32 here in any case
      return size == 1 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{.type = type, .rows = rows, .columns = columns, .ld = ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t raw,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t size) {
  Layout& layout = *reinterpret_cast<Layout*>(raw);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return set(layout.batch, value, size);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return set(layout.stride, value, size);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new int);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<int*>(preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t, const void*,
                                                    size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t, cublasComputeType_t, cudaDataType_t, cudaDataType_t,
                                      cudaDataType_t, cudaDataType_t, cudaDataType_t, int id,
                                      cublasLtMatmulAlgo_t* algo) {
  if (id < 1 || id > kAlgorithms) return CUBLAS_STATUS_INVALID_VALUE;
  *algo = {};
  *of(algo) = algorithm(id);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t* written) {
  std::memcpy(value, attribute == CUBLASLT_ALGO_CONFIG_ID ? &of(algo)->id : &of(algo)->attributes[attribute],
              size);
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    const void* value, size_t size) {
  std::memcpy(&of(algo)->attributes[attribute], value, size);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  const Layout& to = *reinterpret_cast<Layout*>(d);
  const int parts = of(algo)->attributes[CUBLASLT_ALGO_CONFIG_SPLITK_NUM];
  *result = {};
  result->algo = *algo;
  result->workspaceSize = parts > 1 ? static_cast<size_t>(parts) * to.rows * to.columns * sizeof(float) : 0;
  result->state = supported(*reinterpret_cast<Desc*>(desc), *reinterpret_cast<Layout*>(a),
                            *reinterpret_cast<Layout*>(b), to)
                      ? CUBLAS_STATUS_SUCCESS
                      : CUBLAS_STATUS_NOT_SUPPORTED;
  return result->state;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = 0;
  for (int id = 1; id <= kAlgorithms && *found < wanted; ++id) {
    cublasLtMatmulAlgo_t algo{};
    *of(&algo) = algorithm(id);
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle, desc, a, b, c, d, &algo, &results[*found]);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    ++*found;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t raw, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t la, const void* b, cublasLtMatrixLayout_t lb,
                              const void* beta, const void* c, cublasLtMatrixLayout_t lc, void* d,
                              cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t* algo, void*, size_t,
                              cudaStream_t stream) {
  Desc desc = *reinterpret_cast<Desc*>(raw);
  const Layout a_of = *reinterpret_cast<Layout*>(la), b_of = *reinterpret_cast<Layout*>(lb),
               c_of = *reinterpret_cast<Layout*>(lc), d_of = *reinterpret_cast<Layout*>(ld);
  if (!supported(desc, a_of, b_of, d_of) || (algo && of(algo)->id > kAlgorithms))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!has_bias(desc.epilogue)) desc.bias = nullptr;
  emulator::enqueue(stream,
                    [=, by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta)] {
                      multiply(desc, by, a, a_of, b, b_of, keep, c, c_of, d, d_of);
                    });
  return CUBLAS_STATUS_SUCCESS;
}
}
