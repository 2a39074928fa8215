#include "kernels/gemm/sm90/problem.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/gemm/sm90/kernels.h"
#include "kernels/gemm/sm90/shape.h"

namespace tessera::gemm {
namespace {

constexpr int64_t kMostOfBatchSize = int64_t{1} << 20;  // tiles of a batch are counted in 32 bits
static_assert(kTileRows == kRowsOfPartial && kTileColumns == kColumnsOfPartial);

bool fits(const GemmMatrix& matrix, DType dtype) {
  return matrix.dtype.value_or(dtype) == dtype && is_aligned(matrix.data, kAlignment) &&
         matrix.ld * static_cast<int64_t>(size_of(dtype)) % kAlignment == 0;
}

// None: operands that no kernel takes
std::optional<Operands> operands_of(const Gemm& gemm) {
  const DType a = gemm.a.dtype.value_or(gemm.dtype), b = gemm.b.dtype.value_or(gemm.dtype);
  if (a == DType::kBF16 && b == DType::kBF16) return Operands::kBf16;
  const bool is_gelu = gemm.activation == Activation::kGelu || gemm.activation == Activation::kGeluExact;
  if (b != DType::kE4M3 || gemm.k > kMostFp8Sums || !is_gelu) return std::nullopt;
  const bool activates = writes_aux(gemm.epilogue);
  if (a == DType::kE4M3 && activates) return Operands::kE4m3;
  if (a == DType::kE5M2 && gemm.epilogue == GemmEpilogue::kActivationBackward) return Operands::kE5m2;
  return std::nullopt;
}

#ifdef TESSERA_GEMM_SM90
Run& kernel_of(const Problem& problem) {
  const bool backward = problem.kind == Kind::kActivationBackward, fp8 = problem.operands != Operands::kBf16;
  switch (problem.kind) {
    case Kind::kPlain:
      return problem.transposed ? run_plain : run_plain_stored;
    case Kind::kAdd:
      return run_add;
    case Kind::kExp:
      return run_exp;
    case Kind::kWeightGradient:
      return run_weight_gradient;
    case Kind::kActivate:
    case Kind::kActivationBackward:
      switch (problem.activation) {
        case Activation::kGelu:
          return fp8        ? backward ? run_gelu_backward_fp8 : run_gelu_fp8
                 : backward ? run_gelu_backward
                            : run_gelu;
        case Activation::kGeluExact:
          return fp8        ? backward ? run_gelu_exact_backward_fp8 : run_gelu_exact_fp8
                 : backward ? run_gelu_exact_backward
                            : run_gelu_exact;
        case Activation::kRelu:
          check(!fp8, "there is no FP8 GEMM with ReLU: operands must be in bf16");
          return backward ? run_relu_backward : run_relu;
        case Activation::kRelu2:
          check(!fp8, "there is no FP8 GEMM with squared ReLU: operands must be in bf16");
          return backward ? run_relu2_backward : run_relu2;
      }
  }
  fail("there is no GEMM of kind {} with activation {}", static_cast<int>(problem.kind),
       name_of(problem.activation));
}
#endif

}  // namespace

std::optional<Problem> problem_of(const Gemm& gemm) {
  const DType t = gemm.dtype;
  const std::optional<Operands> operands = operands_of(gemm);
  if (t != DType::kBF16 || !operands || !fits(gemm.a, gemm.a.dtype.value_or(t)) ||
      !fits(gemm.b, gemm.b.dtype.value_or(t)) || !fits(gemm.d, t) || gemm.batch != 1 || gemm.alpha != 1 ||
      gemm.n * 2 % kAlignment != 0 || !is_aligned(gemm.bias, 4) ||
      std::max({gemm.m, gemm.n, gemm.k}) > INT32_MAX / 2)
    return std::nullopt;
  const void* c = gemm.c ? gemm.c : gemm.d.data;
  Problem problem{.kind = Kind::kPlain,
                  .m = gemm.m,
                  .n = gemm.n,
                  .k = gemm.k,
                  .a = {gemm.a.data, gemm.a.ld},
                  .b = {gemm.b.data, gemm.b.ld},
                  .d = {gemm.d.data, gemm.d.ld},
                  .transposed = gemm.b.transposed,
                  .operands = *operands,
                  .fp8 = {.a_scale = gemm.a.scale, .b_scale = gemm.b.scale},
                  .activation = gemm.activation};
  const bool adds = gemm.beta != 0;
  switch (gemm.epilogue) {
    case GemmEpilogue::kNone:
    case GemmEpilogue::kBias:
      if (adds) problem.kind = Kind::kAdd, problem.e = {c, gemm.d.ld};
      if (gemm.a.transposed) problem.kind = Kind::kWeightGradient;
      break;
    case GemmEpilogue::kActivate:
    case GemmEpilogue::kActivateBias:
      problem.kind = Kind::kActivate, problem.e = {gemm.aux, gemm.n};
      break;
    case GemmEpilogue::kActivationBackward:
      problem.kind = Kind::kActivationBackward, problem.e = {gemm.aux, gemm.n};
      break;
  }
  if (adds_bias(gemm.epilogue)) problem.bias = gemm.bias;
  const bool weight_gradient = problem.kind == Kind::kWeightGradient,
             b_is_stored = weight_gradient ||
                           (problem.kind == Kind::kActivationBackward && *operands == Operands::kBf16);
  const bool stored_as_served = gemm.a.transposed == weight_gradient &&
                                (problem.kind == Kind::kPlain || problem.transposed != b_is_stored);
  const bool adds_as_served = !adds || ((problem.kind == Kind::kAdd || weight_gradient) && gemm.beta == 1);
  if (weight_gradient) {
    problem.sums = gemm.sums, problem.summed = gemm.summed;
    const int64_t tiles =
        cuda::divide_up(gemm.m, kWeightGradientTile) * cuda::divide_up(gemm.n, kWeightGradientTile);
    if (gemm.epilogue != GemmEpilogue::kNone || (gemm.summed > 0 && tiles > kMostSummedTiles))
      return std::nullopt;
  }
  if (!stored_as_served || !adds_as_served || !is_aligned(problem.e.data, kAlignment)) return std::nullopt;
  return problem;
}

bool available() {
#ifdef TESSERA_GEMM_SM90
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
#else
  return false;
#endif
}

bool is_preferred(const Problem& problem, int multiprocessors) {
  const int64_t rows = cuda::divide_up(problem.m, kTileRows),
                columns = cuda::divide_up(problem.n, kTileColumns);
  const bool has_epilogue =
      problem.kind == Kind::kPlain ? problem.bias != nullptr : problem.kind != Kind::kWeightGradient;
  return has_epilogue && rows * columns >= multiprocessors;
}

void run(const Problem& problem, int multiprocessors, cudaStream_t stream) {
#ifdef TESSERA_GEMM_SM90
  const cudaError_t status = kernel_of(problem)(problem, multiprocessors, stream);
  check(status == cudaSuccess, "our GEMM [{}, {}] x [{}, {}] cannot be launched: {}", problem.m, problem.k,
        problem.k, problem.n, cudaGetErrorString(status));
#else
  (void)problem, (void)multiprocessors, (void)stream;
  fail(kNoKernels);
#endif
}

bool serves_batch(const Gemm& gemm) {
  const int64_t sizes = gemm.m | gemm.n | gemm.k;
  return gemm.dtype == DType::kBF16 && gemm.batch == 1 && gemm.epilogue == GemmEpilogue::kNone &&
         gemm.sums == nullptr && !(gemm.a.transposed && gemm.b.transposed) && fits(gemm.a, gemm.dtype) &&
         fits(gemm.b, gemm.dtype) && fits(gemm.d, gemm.dtype) && is_aligned(gemm.c, kAlignment) &&
         sizes * 2 % kAlignment == 0 && std::max({gemm.m, gemm.n, gemm.k}) <= kMostOfBatchSize;
}

void run_batch(std::span<const Gemm> gemms, int multiprocessors, cudaStream_t stream) {
#ifdef TESSERA_GEMM_SM90
  const cudaError_t status = run_batch_kernel(gemms, multiprocessors, stream);
  check(status == cudaSuccess,
        "our kernel for {} GEMMs, of [{}, {}] x [{}, {}] first, cannot be launched: {}", gemms.size(),
        gemms[0].m, gemms[0].k, gemms[0].k, gemms[0].n, cudaGetErrorString(status));
#else
  (void)gemms, (void)multiprocessors, (void)stream;
  fail(kNoKernels);
#endif
}

}  // namespace tessera::gemm
