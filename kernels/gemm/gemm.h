// GEMMs, described row-major: their operands, the key on which the choice of an algorithm depends, and the
// library that has several algorithms for each.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/activation.h"
#include "kernels/base/gemm_source.h"
#include "kernels/base/tensor.h"

namespace tessera {

struct Launch;

// What happens to the sums before they are rounded
enum class GemmEpilogue : uint8_t {
  kNone,                // d = sum
  kBias,                // d = sum + bias
  kActivate,            // aux = sum, d = activation(aux)
  kActivateBias,        // aux = sum + bias, d = activation(aux)
  kActivationBackward,  // d = sum activation'(aux)
};
inline constexpr std::array kGemmEpilogues = {GemmEpilogue::kNone, GemmEpilogue::kBias,
                                              GemmEpilogue::kActivate, GemmEpilogue::kActivateBias,
                                              GemmEpilogue::kActivationBackward};
constexpr bool writes_aux(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kActivate || epilogue == GemmEpilogue::kActivateBias;
}
constexpr bool has_aux(GemmEpilogue epilogue) {
  return writes_aux(epilogue) || epilogue == GemmEpilogue::kActivationBackward;
}
constexpr bool adds_bias(GemmEpilogue epilogue) {
  return epilogue == GemmEpilogue::kBias || epilogue == GemmEpilogue::kActivateBias;
}
// The word of an epilogue in tables and messages: "none", "bias"; for GELU "gelu_aux", "gelu_aux_bias" and
// "dgelu", for ReLU "relu_aux" and so on
std::string word_of(GemmEpilogue epilogue, Activation activation);

struct GemmMatrix {
  void* data = nullptr;
  int64_t ld = 0;                   // elements from one stored row to the next
  bool transposed = false;          // stored as [columns, rows]
  int64_t batch_stride = 0;         // elements from one GEMM of a batch to the next
  std::optional<DType> dtype = {};  // none: the dtype of the GEMM
  // FP8: the scale of the values, in the device's memory; none: 1
  const float* scale = nullptr;
};

// d[m, n] = epilogue(alpha a[m, k] b[k, n] + beta c[m, n]); c is laid out as d and may be d. Arithmetic is
// fp32, no TF32, and d is rounded once.
struct Gemm {
  DType dtype;
  int64_t m, n, k;
  GemmMatrix a, b, d;
  void* c = nullptr;  // null: c is d
  float alpha = 1, beta = 0;
  bool symmetric = false;  // d and c are symmetric matrices: it is enough to compute half of d
  bool may_add = false;    // take an algorithm that can add to c, whatever beta is: gradients need this
  int batch = 1;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  Activation activation = Activation::kGelu;  // of the epilogue, if it has one
  void* bias = nullptr;                       // [n], added to every row
  void* aux = nullptr;  // [m, n] contiguous: the input of the activation, written or read
  // sums[i] = beta sums[i] + the sum of a[i, k] over k, for the first `summed` rows of `a`, which must then
  // be transposed and contiguous. None: no sums are computed.
  void* sums = nullptr;
  int64_t summed = 0;  // at most m

  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * batch;
  }
};

inline constexpr int64_t kFullAlignment = 16;  // bytes; a larger alignment helps no algorithm

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
  Matrix a, b, d;  // the alignment of d is also that of c
  int batch;
  GemmEpilogue epilogue;
  Activation activation = Activation::kGelu;  // kGelu where the epilogue has none
  bool adds;                                  // c is read: beta is not 0, or may not be
  int64_t summed = 0;
  auto operator<=>(const GemmKey&) const = default;
};
GemmKey key_of(const Gemm& gemm);
Gemm gemm_of(const GemmKey& key);          // without data
std::string describe(const GemmKey& key);  // "[65536, 768] x [2304, 768]^T in bf16, bias"

// An algorithm of cuBLASLt, by the attributes of cublasLtMatmulAlgoConfigAttributes_t; or our own
struct GemmAlgorithm {
  static constexpr int kOwn = 1'000'000;  // an algorithm with this id, and nothing else set, is ours
                                          // (kernels/gemm/sm90/)

  int id = 0, tile = 0, stages = 0, split_k = 1, reduction = 0, swizzle = 0, custom = 0, inner_shape = 0,
      cluster_shape = 0;
  auto operator<=>(const GemmAlgorithm&) const = default;
};

// The platform for which a choice of algorithms holds: the device, the library's version, and the CUDA
// runtime that the library was built with. Versions are those of cublasLtGetVersion() and
// cublasLtGetCudartVersion()
struct GemmPlatform {
  std::string device;
  int64_t cublaslt = 0, cudart = 0;
  bool operator==(const GemmPlatform&) const = default;
};

struct GemmTable;  // table.h

// A backend's library of GEMMs, which has several algorithms for each GEMM.
class GemmLibrary {
 public:
  virtual ~GemmLibrary() = default;
  virtual GemmPlatform platform() const = 0;
  // At most `most` algorithms for operands that are aligned as the key says, in the library's order; by
  // itself the library takes the first. Algorithms that may round partial sums are left out. Empty: the
  // library cannot compute this GEMM.
  virtual std::vector<GemmAlgorithm> algorithms(const GemmKey& key, int most) = 0;
  virtual bool supports(const GemmKey& key, const GemmAlgorithm& algorithm) = 0;
  // The returned function enqueues the GEMM each time it is called. Error: the library does not support the
  // algorithm.
  virtual std::function<void()> prepare(const Gemm& gemm, const GemmAlgorithm& algorithm,
                                        const Launch& on) = 0;
  // From now on the GEMMs of the table use its algorithms, and all others the library's first one. Call it
  // before the work that should use them is enqueued. Error: the library does not support a choice.
  virtual void use(const GemmTable& table) = 0;
  // For a library that has our kernels beside the vendor's. kAuto: the table decides; if it says nothing, a
  // GEMM with an epilogue takes ours and one without takes the vendor's. Otherwise as many GEMMs as possible
  // take the given source, whatever the table says.
  virtual void take_from(GemmSource /*source*/) {}
};

}  // namespace tessera
