// Our GEMMs for compute capability 9.0, in bf16 with sums in fp32, rounded once. cuBLASLt computes an
// epilogue after its main loop; our kernels compute it beside the main loop of another tile. Same arguments,
// same bits.
//
// The kinds kActivate and kActivationBackward, with GELU only, also take operands in FP8, and can write their
// result in FP8 as well. Tensor cores add FP8 products with some 14 bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/base/activation.h"
#include "kernels/gemm/gemm.h"
#include "kernels/workspace.h"

namespace tessera::gemm {

// A row-major matrix, `ld` elements from one row to the next
struct Matrix {
  const void* data = nullptr;
  int64_t ld = 0;
};

// bf16, or FP8 with a in the named format and b in e4m3: kActivate takes e4m3, kActivationBackward e5m2
enum class Operands { kBf16, kE4m3, kE5m2 };

// FP8 operands: a_scale and b_scale are device pointers to their scales. d, which is optional, gets the
// result in a's format as well: d / scale, computed from d after it was rounded to bf16, rounded to nearest
// and saturating. amax has the bits of a magnitude, which is raised to the largest |d|.
struct Fp8Operands {
  const float *a_scale = nullptr, *b_scale = nullptr;
  uint8_t* d = nullptr;  // [m, n]
  const float* scale = nullptr;
  uint32_t* amax = nullptr;
};

// What happens to the sums of a[m, k] b[k, n]
enum class Kind {
  kPlain,               // d = sum + bias
  kAdd,                 // d = sum + bias + e; d may be e
  kActivate,            // e = sum + bias, d = activation(that, before it is rounded)
  kActivationBackward,  // d = sum activation'(e)
  kExp,                 // d = exp(min(sum - reference of the row, kMostExponent)); 0 in columns that are left
                        // out
  kWeightGradient,      // d = sum, or sum + e, where d may be e; a is stored as [k, m], b as [k, n]; split-K
};

// Arguments of kExp
struct Exponentials {
  const float* references = nullptr;  // [m]
  const int32_t* left_out = nullptr;  // [m]: for each row, a column that is left out; negative: none
  int64_t end = 0;                    // columns from here on are left out
};
constexpr float kMostExponent = 60;  // sums of 2^32 such values stay finite, and so do products with these
                                     // sums

struct Problem {
  Kind kind;
  int64_t m, n, k;
  Matrix a, b, d, e = {};
  // b is stored as [n, k]: always with FP8 operands, kAdd and kActivate; never for kActivationBackward in
  // bf16
  bool transposed;
  Operands operands = Operands::kBf16;
  Fp8Operands fp8 = {};
  const void* bias = nullptr;  // [n], added to every row
  // kActivationBackward, optional: [partial_rows(m), n], sums of d over kRowsOfPartial rows each.
  // kExp: [n / kColumnsOfPartial rounded up, m], sums of kColumnsOfPartial columns of d, before rounding.
  // kWeightGradient: kWeightGradientBytes, for partial sums.
  float* partials = nullptr;
  // kWeightGradient, optional: [summed], the sum of a[k, i] over k, added to what is there if `e` is set.
  void* sums = nullptr;
  int64_t summed = 0;
  Exponentials exponentials = {};
  Activation activation = Activation::kGelu;
};
constexpr int64_t kRowsOfPartial = 128;
constexpr int64_t partial_rows(int64_t m) { return cuda::divide_up(m, kRowsOfPartial); }
constexpr int64_t kMostFp8Sums = 8192;  // k of FP8 operands: longer sums would lose more than 2^-7
constexpr int64_t kColumnsOfPartial = 192;
// kWeightGradient stores partial sums of tiles of 256 x 256, and 256 sums of a for each partial and each
// whole tile.
constexpr int64_t kWeightGradientTile = 256;
constexpr int kMostPartials = 120, kMostSummedTiles = 1024;
constexpr int64_t kWeightGradientBytes =
    (kMostPartials * kWeightGradientTile + kMostPartials + kMostSummedTiles) * kWeightGradientTile * 4;

// The same GEMM as a Problem, if we have a kernel for it: bf16, or FP8 as above; no batch; alpha 1; rows and
// addresses multiples of 16 bytes.
std::optional<Problem> problem_of(const Gemm& gemm);

// Whether this build has the kernels, and they run on the current device
bool available();

// Whether our kernel is expected to be faster than cuBLASLt's when neither was timed: the GEMM has an
// epilogue, and tiles for all multiprocessors
bool is_preferred(const Problem& problem, int multiprocessors);

void run(const Problem& problem, int multiprocessors, cudaStream_t stream);

// Several GEMMs of any sizes as one kernel, at most kMostOfBatch: in bf16, without epilogue, with any alpha
// and beta; a may be transposed only if b is not. Each gets the bits that it would get by itself. If d is
// symmetric, half of it is computed.
inline constexpr int kMostOfBatch = 24;
bool serves_batch(const Gemm& gemm);
void run_batch(std::span<const Gemm> gemms, int multiprocessors, cudaStream_t stream);

}  // namespace tessera::gemm
