#include "kernels/products/product.h"

#include "kernels/base/check.h"
#include "kernels/products/kernels.h"
#include "kernels/products/shape.h"

namespace tessera::products {
namespace {

constexpr int64_t kAlignment = 16;  // bytes, of the copy engine
static_assert(kTileRows == kRowsOfPartial && kTileColumns == kColumnsOfPartial);

bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

bool fits(const GemmMatrix& matrix, DType dtype) {
  return matrix.dtype.value_or(dtype) == dtype && is_aligned(matrix.data, kAlignment) &&
         matrix.ld * static_cast<int64_t>(size_of(dtype)) % kAlignment == 0;
}

// None: factors that no kernel has
std::optional<Factors> factors_of(const Gemm& gemm) {
  const DType a = gemm.a.dtype.value_or(gemm.dtype), b = gemm.b.dtype.value_or(gemm.dtype);
  if (a == DType::kBF16 && b == DType::kBF16) return Factors::kBf16;
  if (b != DType::kE4M3 || gemm.k > kMostFp8Sums) return std::nullopt;
  const bool gelu = gemm.epilogue == GemmEpilogue::kGeluAux || gemm.epilogue == GemmEpilogue::kGeluAuxBias;
  if (a == DType::kE4M3 && gelu) return Factors::kE4m3;
  if (a == DType::kE5M2 && gemm.epilogue == GemmEpilogue::kDGelu) return Factors::kE5m2;
  return std::nullopt;
}

#ifdef TESSERA_PRODUCTS_SM90
Run& kernel_of(const Product& product) {
  const bool slope = product.kind == Kind::kSlope, fp8 = product.factors != Factors::kBf16;
  switch (product.kind) {
    case Kind::kPlain:
      return product.transposed ? run_plain : run_plain_stored;
    case Kind::kAdd:
      return run_add;
    case Kind::kExp:
      return run_exp;
    case Kind::kOverRows:
      return run_over_rows;
    case Kind::kActivate:
    case Kind::kSlope:
      switch (product.activation) {
        case Activation::kGelu:
          return fp8 ? slope ? run_gelu_slope_fp8 : run_gelu_fp8 : slope ? run_gelu_slope : run_gelu;
        case Activation::kGeluExact:
          return fp8     ? slope ? run_gelu_exact_slope_fp8 : run_gelu_exact_fp8
                 : slope ? run_gelu_exact_slope
                         : run_gelu_exact;
        case Activation::kRelu:
          check(!fp8, "no product in FP8 has ReLU");
          return slope ? run_relu_slope : run_relu;
      }
  }
  fail("no such matrix product");
}
#endif

}  // namespace

std::optional<Product> product_of(const Gemm& gemm) {
  const DType t = gemm.dtype;
  const std::optional<Factors> factors = factors_of(gemm);
  if (t != DType::kBF16 || !factors || !fits(gemm.a, gemm.a.dtype.value_or(t)) ||
      !fits(gemm.b, gemm.b.dtype.value_or(t)) || !fits(gemm.d, t) || gemm.batch != 1 || gemm.alpha != 1 ||
      gemm.n * 2 % kAlignment != 0 || !is_aligned(gemm.bias, 4) ||
      std::max({gemm.m, gemm.n, gemm.k}) > INT32_MAX / 2)
    return std::nullopt;
  const void* c = gemm.c ? gemm.c : gemm.d.data;
  Product product{.kind = Kind::kPlain,
                  .m = gemm.m,
                  .n = gemm.n,
                  .k = gemm.k,
                  .a = {gemm.a.data, gemm.a.ld},
                  .b = {gemm.b.data, gemm.b.ld},
                  .d = {gemm.d.data, gemm.d.ld},
                  .transposed = gemm.b.transposed,
                  .factors = *factors,
                  .fp8 = {.a_scale = gemm.a.scale, .b_scale = gemm.b.scale}};
  const bool adds = gemm.beta != 0;
  switch (gemm.epilogue) {
    case GemmEpilogue::kNone:
    case GemmEpilogue::kBias:
      if (adds) product.kind = Kind::kAdd, product.e = {c, gemm.d.ld};
      if (gemm.a.transposed) product.kind = Kind::kOverRows;
      break;
    case GemmEpilogue::kGeluAux:
    case GemmEpilogue::kGeluAuxBias:
      product.kind = Kind::kActivate, product.e = {gemm.aux, gemm.n};
      break;
    case GemmEpilogue::kDGelu:
      product.kind = Kind::kSlope, product.e = {gemm.aux, gemm.n};
      break;
  }
  if (gemm.epilogue == GemmEpilogue::kBias || gemm.epilogue == GemmEpilogue::kGeluAuxBias)
    product.bias = gemm.bias;
  const bool over_rows = product.kind == Kind::kOverRows,
             b_is_stored = over_rows || (product.kind == Kind::kSlope && *factors == Factors::kBf16);
  const bool stored_as_served =
      gemm.a.transposed == over_rows && (product.kind == Kind::kPlain || product.transposed != b_is_stored);
  const bool adds_as_served = !adds || ((product.kind == Kind::kAdd || over_rows) && gemm.beta == 1);
  if (over_rows) {
    product.sums = gemm.sums, product.summed = gemm.summed;
    const int64_t tiles = cuda::divide_up(gemm.m, kTileOverRows) * cuda::divide_up(gemm.n, kTileOverRows);
    if (gemm.epilogue != GemmEpilogue::kNone || (gemm.summed > 0 && tiles > kMostSummedTiles))
      return std::nullopt;
  }
  if (!stored_as_served || !adds_as_served || !is_aligned(product.e.data, kAlignment)) return std::nullopt;
  return product;
}

bool available() {
#ifdef TESSERA_PRODUCTS_SM90
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
#else
  return false;
#endif
}

bool is_preferred(const Product& product, int multiprocessors) {
  const int64_t rows = cuda::divide_up(product.m, kTileRows),
                columns = cuda::divide_up(product.n, kTileColumns);
  const bool has_epilogue =
      product.kind == Kind::kPlain ? product.bias != nullptr : product.kind != Kind::kOverRows;
  return has_epilogue && rows * columns >= multiprocessors;
}

void run(const Product& product, int multiprocessors, cudaStream_t stream) {
#ifdef TESSERA_PRODUCTS_SM90
  const cudaError_t status = kernel_of(product)(product, multiprocessors, stream);
  check(status == cudaSuccess, "our matrix product [{}, {}] x [{}, {}] cannot be launched: {}", product.m,
        product.k, product.k, product.n, cudaGetErrorString(status));
#else
  (void)product, (void)multiprocessors, (void)stream;
  fail("this build has no matrix products of its own: TESSERA_CUDA_ARCHS has no 90a");
#endif
}

}  // namespace tessera::products
