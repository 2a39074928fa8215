// Our matrix products for compute capability 9.0, in bf16 with sums in fp32, rounded once. Where cuBLASLt
// computes an epilogue after its products, ours computes it beside them. Same arguments, same bits.
//
// Two kinds, with GELU alone, also take factors in FP8, and write their result in FP8 as well. The tensor
// cores add products of FP8 with some 14 bits.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "kernels/base/activation.h"
#include "kernels/gemm.h"
#include "kernels/workspace.h"

namespace tessera::products {

// A row-major matrix, `ld` elements from one row to the next
struct Matrix {
  const void* data = nullptr;
  int64_t ld = 0;
};

// Of bf16; or a in the format that is named and b in e4m3: with kActivate e4m3, with kSlope e5m2
enum class Factors { kBf16, kE4m3, kE5m2 };

// With factors in FP8. What their products are multiplied by, in the device's memory; and, if wanted, d once
// more in the format of a: of d / scale, d as it is in bf16, which is rounded to nearest, cut off at the
// largest number. amax, the bits of a magnitude, becomes at least the largest |d|.
struct Fp8Factors {
  const float *a_scale = nullptr, *b_scale = nullptr;
  uint8_t* codes = nullptr;  // [m, n]
  const float* scale = nullptr;
  uint32_t* amax = nullptr;
};

// What happens to the sums of a[m, k] b[k, n]
enum class Kind {
  kPlain,     // d = sum + bias
  kAdd,       // d = sum + bias + e; d may be e
  kActivate,  // e = sum + bias, d = activation(that, before it is rounded)
  kSlope,     // d = sum activation'(e)
  kExp,       // d = exp(min(sum - reference of the row, kMostExponent)), 0 in columns that do not count
  kOverRows,  // d = sum, or sum + e, where d may be e; a is stored as [k, m], b as [k, n]
};

// Of kExp
struct Exponentials {
  const float* references = nullptr;  // [m]
  const int32_t* left_out = nullptr;  // [m]: a column of each row that does not count; negative: none
  int64_t end = 0;                    // columns from here on do not count
};
constexpr float kMostExponent = 60;  // sums of 2^32 of them stay finite, and so do products with them

struct Product {
  Kind kind;
  int64_t m, n, k;
  Matrix a, b, d, e = {};
  bool transposed;  // b is stored as [n, k]: in FP8, with kAdd and kActivate always, else with kSlope never
  Factors factors = Factors::kBf16;
  Fp8Factors fp8 = {};
  const void* bias = nullptr;  // [n], added to every row
  // With kSlope, if wanted: [partial_rows(m), n], sums of d over so many rows each, to be added up.
  // With kExp: [partial_columns(n), m], sums of d over so many columns each, before they are rounded.
  // With kOverRows: kOverRowsBytes, for parts of sums.
  float* partials = nullptr;
  // With kOverRows, if wanted: [summed], the sum of a[k, i] over k, added to what is there if there is an e
  void* sums = nullptr;
  int64_t summed = 0;
  Exponentials exponentials = {};
  Activation activation = Activation::kGelu;
};
constexpr int64_t kRowsOfPartial = 128;
constexpr int64_t partial_rows(int64_t m) { return cuda::divide_up(m, kRowsOfPartial); }
constexpr int64_t kMostFp8Sums = 8192;  // k of factors in FP8: longer sums would lose more than 2^-7
constexpr int64_t kColumnsOfPartial = 192;
constexpr int64_t partial_columns(int64_t n) { return cuda::divide_up(n, kColumnsOfPartial); }
// With kOverRows: parts of the sums of tiles of 256 x 256, and 256 sums of a of each part and each whole tile
constexpr int64_t kTileOverRows = 256;
constexpr int kMostPartials = 120, kMostSummedTiles = 1024;
constexpr int64_t kOverRowsBytes =
    (kMostPartials * kTileOverRows + kMostPartials + kMostSummedTiles) * kTileOverRows * 4;

// The same as `gemm`, if it is one that we have a kernel for: bf16 or FP8 as above, one product, no factor,
// rows and addresses multiples of 16 bytes.
std::optional<Product> product_of(const Gemm& gemm);

// Whether this build has the kernels, and they run on the current device
bool available();

// Whether ours is the faster one where nothing is known about cuBLASLt's best: with an epilogue, and tiles
// for all multiprocessors
bool is_preferred(const Product& product, int multiprocessors);

void run(const Product& product, int multiprocessors, cudaStream_t stream);

}  // namespace tessera::products
