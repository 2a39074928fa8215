#include "kernels/cuda/gemm_runner.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/backend.h"
#include "kernels/base/fp8.h"
#include "kernels/cuda/column_sum.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/gemm/table.h"
#include "kernels/workspace.h"

namespace tessera::cuda {

// A cuBLASLt descriptor that is destroyed with its owner. Members of Plan have it, so it is not in the
// anonymous namespace.
template <class Handle, cublasStatus_t (*kDestroy)(Handle)>
struct DestroyCublasLt {
  using pointer = Handle;
  void operator()(Handle handle) const { kDestroy(handle); }
};

namespace {

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return CUDA_R_32F;
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kE4M3:
      return CUDA_R_8F_E4M3;
    case DType::kE5M2:
      return CUDA_R_8F_E5M2;
    case DType::kI32:
    case DType::kU16:
      break;
  }
  fail("a GEMM takes fp32, bf16 or FP8, found {}", name_of(dtype));
}

using MatmulDesc = std::unique_ptr<void, DestroyCublasLt<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<void, DestroyCublasLt<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<void, DestroyCublasLt<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

template <class V>
void set(const MatmulDesc& desc, cublasLtMatmulDescAttributes_t attribute, const V& value) {
  TESSERA_CUDA(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof value));
}

template <class V>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, const V& value) {
  TESSERA_CUDA(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

cublasLtEpilogue_t epilogue_of(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::kActivate:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmEpilogue::kActivateBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::kActivationBackward:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  fail("cuBLASLt has no epilogue {}", static_cast<int>(epilogue));
}
// Its one activation is the tanh form of GELU.
bool cublaslt_has(const GemmKey& key) {
  return !has_aux(key.epilogue) || key.activation == Activation::kGelu;
}

// cuBLASLt counts columns first, so it sees a row-major array as its transpose: our rows are its columns.
Layout layout_of(const GemmKey::Matrix& matrix, int64_t rows, int64_t columns, int batch) {
  if (matrix.transposed) std::swap(rows, columns);
  cublasLtMatrixLayout_t raw = nullptr;
  TESSERA_CUDA(cublasLtMatrixLayoutCreate(&raw, cuda_type(matrix.dtype), static_cast<uint64_t>(columns),
                                          static_cast<uint64_t>(rows), matrix.ld));
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
void set_epilogue_pointers(const MatmulDesc& desc, GemmEpilogue epilogue, const void* bias, const void* aux) {
  if (adds_bias(epilogue)) set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (has_aux(epilogue)) set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
}

// The same for the scales of FP8 operands: our b is cuBLASLt's A.
void set_scale_pointers(const MatmulDesc& desc, const GemmKey& key, const void* a, const void* b) {
  if (is_fp8(key.b.dtype)) set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b);
  if (is_fp8(key.a.dtype)) set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a);
}

// Every attribute of an algorithm, and where we keep it. Its id is given when it is made.
constexpr std::pair<cublasLtMatmulAlgoConfigAttributes_t, int GemmAlgorithm::*> kAttributes[] = {
    {CUBLASLT_ALGO_CONFIG_TILE_ID, &GemmAlgorithm::tile},
    {CUBLASLT_ALGO_CONFIG_STAGES_ID, &GemmAlgorithm::stages},
    {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &GemmAlgorithm::split_k},
    {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &GemmAlgorithm::reduction},
    {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &GemmAlgorithm::swizzle},
    {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &GemmAlgorithm::custom},
    {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &GemmAlgorithm::inner_shape},
    {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &GemmAlgorithm::cluster_shape}};

// Two of them are 16 bits wide.
bool is_short(cublasLtMatmulAlgoConfigAttributes_t attribute) {
  return attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
         attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
}

GemmAlgorithm attributes_of(const cublasLtMatmulAlgo_t& from) {
  GemmAlgorithm algorithm;
  const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, int& to) {
    uint32_t wide = 0;  // little-endian: a short value fills its lower half
    size_t written = 0;
    TESSERA_CUDA(
        cublasLtMatmulAlgoConfigGetAttribute(&from, attribute, &wide, is_short(attribute) ? 2 : 4, &written));
    to = static_cast<int>(wide);
  };
  get(CUBLASLT_ALGO_CONFIG_ID, algorithm.id);
  for (const auto& [attribute, member] : kAttributes) get(attribute, algorithm.*member);
  return algorithm;
}

static_assert(gemm::kWeightGradientBytes <= kGemmWorkspaceBytes);
void give_workspace(gemm::Problem& problem, void* workspace) {
  if (problem.kind == gemm::Kind::kWeightGradient) problem.partials = static_cast<float*>(workspace);
}

// Algorithms that split k are known by their parts and by how these are added: cuBLASLt also has some whose
// count is -1, which its headers do not describe.
bool adds_in_fp32(const GemmAlgorithm& algorithm) {
  return algorithm.split_k == 0 || algorithm.split_k == 1 ||
         (algorithm.split_k > 1 && algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

bool is_own(const GemmAlgorithm& algorithm) { return algorithm.id == GemmAlgorithm::kOwn; }

}  // namespace

struct GemmRunner::Plan {
  MatmulDesc desc;
  Layout a, b, d;
  std::optional<cublasLtMatmulAlgo_t> algorithm = {};  // none: cuBLASLt has none
  bool is_own = false;                                 // ours is taken instead
};

GemmRunner::GemmRunner() : has_own_(gemm::available()), plans_(std::make_unique<std::map<GemmKey, Plan>>()) {
  TESSERA_CUDA(cublasLtCreate(&handle_));
  int device = 0;
  TESSERA_CUDA(cudaGetDevice(&device));
  TESSERA_CUDA(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device));
}

GemmRunner::~GemmRunner() {
  plans_.reset();
  cublasLtDestroy(handle_);
}

GemmRunner::Plan GemmRunner::describe(const GemmKey& key) const {
  Plan plan;
  cublasLtMatmulDesc_t raw_desc = nullptr;
  TESSERA_CUDA(cublasLtMatmulDescCreate(&raw_desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  plan.desc.reset(raw_desc);
  const cublasOperation_t op_a = key.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t op_b = key.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, op_b);  // d^T = b^T a^T: the operands trade places
  set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, op_a);
  set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key.epilogue));
  // Hopper's tensor cores add FP8 products, 32 at a time, with some 14 bits. A sum of up to kMostFp8Sums
  // loses less than 2^-7 of itself, an eighth of what rounding one operand to e4m3 may cost. Longer sums
  // are added up in fp32 from time to time, which takes longer.
  if (is_fp8(key.a.dtype) && key.k <= gemm::kMostFp8Sums)
    set(plan.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(1));
  if (has_aux(key.epilogue)) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
  // Placeholders until a GEMM is enqueued: an algorithm is searched for an epilogue that has its operands.
  const auto* aligned = reinterpret_cast<const void*>(uintptr_t{256});
  set_epilogue_pointers(plan.desc, key.epilogue, aligned, aligned);
  set_scale_pointers(plan.desc, key, aligned, aligned);
  plan.a = layout_of(key.a, key.m, key.k, key.batch);
  plan.b = layout_of(key.b, key.k, key.n, key.batch);
  plan.d = layout_of(key.d, key.m, key.n, key.batch);
  return plan;
}

// The algorithms that cuBLASLt would take, by its estimate the fastest first
std::vector<cublasLtMatmulAlgo_t> GemmRunner::heuristic(const GemmKey& key, const Plan& plan,
                                                        int most) const {
  if (!cublaslt_has(key)) return {};
  cublasLtMatmulPreference_t raw_preference = nullptr;
  TESSERA_CUDA(cublasLtMatmulPreferenceCreate(&raw_preference));
  const Preference preference(raw_preference);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kGemmWorkspaceBytes));
  // Where k is split, the parts are added in fp32: the other schemes would round each of them to bf16.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t attribute, const GemmKey::Matrix& matrix) {
    set(preference, attribute, static_cast<uint32_t>(matrix.alignment));
  };
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.b);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.a);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.d);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.d);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, plan.desc.get(), plan.b.get(), plan.a.get(), plan.d.get(),
                                     plan.d.get(), preference.get(), most, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return {};
  TESSERA_CUDA(status);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (size_t i = 0; i < static_cast<size_t>(found); ++i)
    if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
  return algorithms;
}

// None if this library does not support it, or not within our workspace
std::optional<cublasLtMatmulAlgo_t> GemmRunner::built(const GemmKey& key, const Plan& plan,
                                                      const GemmAlgorithm& algorithm) const {
  if (!cublaslt_has(key)) return std::nullopt;
  cublasLtMatmulAlgo_t algo{};
  if (cublasLtMatmulAlgoInit(handle_, CUBLAS_COMPUTE_32F, CUDA_R_32F, cuda_type(key.b.dtype),
                             cuda_type(key.a.dtype), cuda_type(key.d.dtype), cuda_type(key.d.dtype),
                             algorithm.id, &algo) != CUBLAS_STATUS_SUCCESS)
    return std::nullopt;
  for (const auto& [attribute, member] : kAttributes) {
    const auto wide = static_cast<uint32_t>(algorithm.*member);
    if (cublasLtMatmulAlgoConfigSetAttribute(&algo, attribute, &wide, is_short(attribute) ? 2 : 4) !=
        CUBLAS_STATUS_SUCCESS)
      return std::nullopt;
  }
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_, plan.desc.get(), plan.b.get(), plan.a.get(),
                                                        plan.d.get(), plan.d.get(), &algo, &result);
  if (status != CUBLAS_STATUS_SUCCESS || result.state != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(kGemmWorkspaceBytes))
    return std::nullopt;
  return algo;
}

std::optional<gemm::Problem> GemmRunner::own(const GemmKey& key) const {
  constexpr int64_t kAligned = 16;
  if (!has_own_ || key.a.alignment < kAligned || key.b.alignment < kAligned || key.d.alignment < kAligned)
    return std::nullopt;
  return gemm::problem_of(gemm_of(key));
}

bool GemmRunner::prefers_own(const gemm::Problem& problem) const {
  return has_own_ && source_ != GemmSource::kCublasLt &&
         (source_ == GemmSource::kTessera || gemm::is_preferred(problem, multiprocessors_));
}

const GemmRunner::Plan& GemmRunner::plan_for(const GemmKey& key) {
  if (const auto found = plans_->find(key); found != plans_->end()) return found->second;
  Plan plan = describe(key);
  auto chosen = chosen_.find(key);
  if (chosen == chosen_.end()) {  // other activations take as long as GELU, and are not timed on their own
    GemmKey with_gelu = key;
    with_gelu.activation = Activation::kGelu;
    chosen = chosen_.find(with_gelu);
  }
  const bool is_chosen = chosen != chosen_.end(), own_chosen = is_chosen && is_own(chosen->second);
  if (const auto problem = own(key))
    plan.is_own = source_ == GemmSource::kAuto && is_chosen ? own_chosen : prefers_own(*problem);
  if (is_chosen && !own_chosen) {
    plan.algorithm = built(key, plan, chosen->second);
  } else if (const auto algorithms = heuristic(key, plan, 1); !algorithms.empty()) {
    plan.algorithm = algorithms.front();
  }
  return plans_->emplace(key, std::move(plan)).first->second;
}

void GemmRunner::enqueue(const Gemm& gemm, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
                         void* workspace, cudaStream_t stream) const {
  set_epilogue_pointers(plan.desc, gemm.epilogue, gemm.bias, gemm.aux);
  set_scale_pointers(plan.desc, key_of(gemm), gemm.a.scale, gemm.b.scale);
  const void* c = gemm.c ? gemm.c : gemm.d.data;
  const cublasStatus_t status = cublasLtMatmul(
      handle_, plan.desc.get(), &gemm.alpha, gemm.b.data, plan.b.get(), gemm.a.data, plan.a.get(), &gemm.beta,
      c, plan.d.get(), gemm.d.data, plan.d.get(), &algorithm, workspace, kGemmWorkspaceBytes, stream);
  check(status == CUBLAS_STATUS_SUCCESS, "cuBLASLt: {}, in the GEMM {}", cublasLtGetStatusString(status),
        tessera::describe(key_of(gemm)));
  if (gemm.summed == 0) return;  // ours computes the sums beside the GEMM, cuBLASLt needs a pass
  const auto tensor = [&](void* data, Shape shape) { return Tensor{data, gemm.dtype, shape, Device::kCuda}; };
  sum_rows(tensor(gemm.a.data, {gemm.k, gemm.m}), tensor(gemm.sums, {gemm.summed}), gemm.beta != 0, workspace,
           stream);
}

std::optional<gemm::Problem> GemmRunner::own(const Gemm& gemm) {
  return plan_for(key_of(gemm)).is_own ? gemm::problem_of(gemm) : std::nullopt;
}

bool GemmRunner::serves_batch(const Gemm& gemm) const {
  return has_own_ && source_ != GemmSource::kCublasLt && gemm::serves_batch(gemm);
}

void GemmRunner::run_batch(std::span<const Gemm> gemms, cudaStream_t stream) {
  gemm::run_batch(gemms, multiprocessors_, stream);
}

bool GemmRunner::try_run(const Gemm& gemm, void* workspace, cudaStream_t stream) {
  if (auto problem = own(gemm)) {
    give_workspace(*problem, workspace);
    gemm::run(*problem, multiprocessors_, stream);
    return true;
  }
  const Plan& plan = plan_for(key_of(gemm));
  if (!plan.algorithm) return false;
  enqueue(gemm, plan, *plan.algorithm, workspace, stream);
  return true;
}

void GemmRunner::run(const Gemm& gemm, void* workspace, cudaStream_t stream) {
  check(try_run(gemm, workspace, stream), "cuBLASLt has no algorithm for the GEMM {}",
        tessera::describe(key_of(gemm)));
}

GemmPlatform GemmRunner::platform() const {
  int device = 0;
  cudaDeviceProp properties{};
  TESSERA_CUDA(cudaGetDevice(&device));
  TESSERA_CUDA(cudaGetDeviceProperties(&properties, device));
  return {.device = properties.name,
          .cublaslt = static_cast<int64_t>(cublasLtGetVersion()),
          .cudart = static_cast<int64_t>(cublasLtGetCudartVersion())};
}

std::vector<GemmAlgorithm> GemmRunner::algorithms(const GemmKey& key, int most) {
  const Plan plan = describe(key);
  std::vector<GemmAlgorithm> algorithms;
  for (const cublasLtMatmulAlgo_t& found : heuristic(key, plan, most)) {
    const GemmAlgorithm algorithm = attributes_of(found);
    const bool is_new = std::find(algorithms.begin(), algorithms.end(), algorithm) == algorithms.end();
    if (is_new && adds_in_fp32(algorithm) && built(key, plan, algorithm)) algorithms.push_back(algorithm);
  }
  const auto problem = own(key);
  if (!problem || source_ == GemmSource::kCublasLt) return algorithms;
  const GemmAlgorithm ours{.id = GemmAlgorithm::kOwn};
  if (source_ == GemmSource::kTessera) return {ours};
  // It is one of `most`, and the first where the library would take it.
  if (algorithms.size() >= static_cast<size_t>(most)) algorithms.pop_back();
  algorithms.insert(prefers_own(*problem) ? algorithms.begin() : algorithms.end(), ours);
  return algorithms;
}

bool GemmRunner::supports(const GemmKey& key, const GemmAlgorithm& algorithm) {
  if (is_own(algorithm)) return source_ != GemmSource::kCublasLt && own(key).has_value();
  return built(key, describe(key), algorithm).has_value();
}

std::function<void()> GemmRunner::prepare(const Gemm& gemm, const GemmAlgorithm& algorithm,
                                          const Launch& on) {
  const GemmKey key = key_of(gemm);
  void* workspace = on.scratch("GEMM", kGemmWorkspaceBytes);
  if (is_own(algorithm)) {
    auto problem = gemm::problem_of(gemm);
    check(has_own_ && problem.has_value(), "we have no GEMM of our own for {}", tessera::describe(key));
    give_workspace(*problem, workspace);
    return [=, this, stream = on.stream] { gemm::run(*problem, multiprocessors_, stream); };
  }
  const auto plan = std::make_shared<Plan>(describe(key));
  plan->algorithm = built(key, *plan, algorithm);
  check(plan->algorithm.has_value(), "cuBLASLt {} does not support algorithm {} for {}", cublasLtGetVersion(),
        algorithm.id, tessera::describe(key));
  return [=, this, stream = on.stream] { enqueue(gemm, *plan, *plan->algorithm, workspace, stream); };
}

void GemmRunner::use(const GemmTable& table) {
  chosen_.clear();
  plans_->clear();
  for (const auto& [key, choice] : table.choices) {
    check(supports(key, choice.algorithm), "cuBLASLt {} does not support the algorithm chosen for {}",
          cublasLtGetVersion(), tessera::describe(key));
    chosen_[key] = choice.algorithm;
  }
}

void GemmRunner::take_from(GemmSource source) {
  check(source != GemmSource::kTessera || has_own_,
        "our own GEMMs need a GPU of compute capability 9.0 and a build for it (90a in TESSERA_CUDA_ARCHS); "
        "set train.gemm_backend to auto");
  source_ = source;
  plans_->clear();
}

}  // namespace tessera::cuda
