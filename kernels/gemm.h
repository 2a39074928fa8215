// Matrix products, described row-major: what is multiplied, what an algorithm for it depends on, and the
// library that has several algorithms for each.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/gemm_source.h"
#include "kernels/base/tensor.h"

namespace tessera {

struct Launch;

// What happens to the sums before they are rounded
enum class GemmEpilogue : uint8_t { kNone, kBias, kGeluAux, kGeluAuxBias, kDGelu };
constexpr auto words_of(GemmEpilogue) {
  return std::array{Word{"none", GemmEpilogue::kNone},                  // d = sum
                    Word{"bias", GemmEpilogue::kBias},                  // d = sum + bias
                    Word{"gelu_aux", GemmEpilogue::kGeluAux},           // aux = sum, d = gelu(aux)
                    Word{"gelu_aux_bias", GemmEpilogue::kGeluAuxBias},  // aux = sum + bias, d = gelu(aux)
                    Word{"dgelu", GemmEpilogue::kDGelu}};               // d = sum gelu'(aux)
}

struct GemmMatrix {
  void* data = nullptr;
  int64_t ld = 0;                   // elements from one stored row to the next
  bool transposed = false;          // stored as [columns, rows]
  int64_t batch_stride = 0;         // elements from one product of a batch to the next
  std::optional<DType> dtype = {};  // none: that of the product
  // FP8: what the elements are multiplied by, in the device's memory; none: 1
  const float* scale = nullptr;
};

// d[m, n] = epilogue(alpha a[m, k] b[k, n] + beta c[m, n]); c is laid out as d and may be d. Arithmetic is
// fp32, no TF32, and d is rounded once.
struct Gemm {
  DType dtype;
  int64_t m, n, k;
  GemmMatrix a, b, d;
  void* c = nullptr;  // none: d
  float alpha = 1, beta = 0;
  bool may_add = false;  // whatever beta is, the algorithm is that of products that add: so for gradients
  int batch = 1;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  void* bias = nullptr;  // [n], added to every row
  void* aux = nullptr;   // [m, n] contiguous: the input of a GELU, written or read
  // Of the first rows of `a`, which is then transposed and contiguous:
  // sums[i] = beta sums[i] + the sum of a[i, k] over k
  void* sums = nullptr;
  int64_t summed = 0;  // rows, at most m

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * batch;
  }
};

inline constexpr int64_t kFullAlignment = 16;  // bytes; more serves no algorithm

// Everything that the choice of an algorithm depends on.
struct GemmKey {
  struct Matrix {
    DType dtype;
    bool transposed;
    int64_t ld, batch_stride;
    int64_t alignment;  // bytes; the largest power of two up to kFullAlignment that divides the address
    auto operator<=>(const Matrix&) const = default;
  };
  int64_t m, n, k;
  Matrix a, b, d;  // d's alignment is c's, too
  int batch;
  GemmEpilogue epilogue;
  bool adds;  // beta is not 0, so that c is read, or may not be
  int64_t summed = 0;
  auto operator<=>(const GemmKey&) const = default;
};
GemmKey key_of(const Gemm& gemm);
Gemm gemm_of(const GemmKey& key);          // without data
std::string describe(const GemmKey& key);  // "[65536, 768] x [2304, 768]^T in bf16, bias"

// An algorithm of cuBLASLt, by the attributes of cublasLtMatmulAlgoConfigAttributes_t; or our own
struct GemmAlgorithm {
  static constexpr int kOwn = 1'000'000;  // as an id, and nothing else: ours (kernels/products/)

  int id = 0, tile = 0, stages = 0, split_k = 1, reduction = 0, swizzle = 0, custom = 0, inner_shape = 0,
      cluster_shape = 0;
  auto operator<=>(const GemmAlgorithm&) const = default;
};

// What a choice of algorithms is good for: the device, the library's version, and the CUDA runtime that the
// library was built with, both as cublasLtGetVersion() and cublasLtGetCudartVersion() count them
struct GemmPlatform {
  std::string device;
  int64_t cublaslt = 0, cudart = 0;
  bool operator==(const GemmPlatform&) const = default;
};

struct GemmTable;  // gemm_table.h

// A backend's library of matrix products, which has several algorithms for each.
class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;
  virtual GemmPlatform platform() const = 0;
  // For operands aligned as the key says, at most `most`, in the library's order, of which it takes the first
  // by itself; without those that may round partial sums. None: it cannot compute this product.
  virtual std::vector<GemmAlgorithm> algorithms(const GemmKey& key, int most) = 0;
  virtual bool supports(const GemmKey& key, const GemmAlgorithm& algorithm) = 0;
  // Enqueues it, each time it is called. Error: the library does not support it.
  virtual std::function<void()> prepare(const Gemm& gemm, const GemmAlgorithm& algorithm,
                                        const Launch& on) = 0;
  // From now on products of the table have its algorithms, and all others the library's first. Call it before
  // work is enqueued that should have them. Error: a choice that the library does not support.
  virtual void use(const GemmTable& table) = 0;
  // For a library that has kernels of ours beside the vendor's. kAuto: as its table says, and where that says
  // nothing, ours with an epilogue and the vendor's without. Else as many as can be, whatever the table says.
  virtual void take_from(GemmSource /*source*/) {}
};

}  // namespace tessera
