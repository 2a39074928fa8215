#include "kernels/cpu/gemm.h"

#include <cblas.h>

#include <algorithm>

namespace tessera::cpu {
namespace {

// Large tiles copy each operand into BLAS' own layout less often; many tiles keep many threads busy.
constexpr int64_t kLargestSide = 512, kSmallestSide = 128, kEnoughTiles = 16;

struct Tiles {
  int64_t rows, columns, height = kLargestSide, width = kLargestSide;

  Tiles(int64_t of_rows, int64_t of_columns) : rows(of_rows), columns(of_columns) {
    while (down() * across() < kEnoughTiles) {
      int64_t& longer = std::min(height, rows) > std::min(width, columns) ? height : width;
      if (longer <= kSmallestSide) break;
      longer /= 2;
    }
  }
  int64_t down() const { return (rows + height - 1) / height; }
  int64_t across() const { return (columns + width - 1) / width; }
};

CBLAS_TRANSPOSE layout(const Matrix& m) { return m.transposed ? CblasTrans : CblasNoTrans; }

// An OpenBLAS with threads of its own would start them in each of ours.
[[maybe_unused]] const bool one_thread_for_each_call = [] {
  if (openblas_get_parallel() == OPENBLAS_THREAD) openblas_set_num_threads(1);
  return true;
}();

}  // namespace

void multiply(const Gemm& gemm) {
  const Tiles tiles(gemm.rows, gemm.columns);
#pragma omp parallel for schedule(dynamic)
  for (int64_t tile = 0; tile < tiles.down() * tiles.across(); ++tile) {
    const int64_t i = tile / tiles.across() * tiles.height, j = tile % tiles.across() * tiles.width;
    cblas_sgemm(CblasRowMajor, layout(gemm.a), layout(gemm.b), std::min(tiles.height, gemm.rows - i),
                std::min(tiles.width, gemm.columns - j), gemm.terms, gemm.scale,
                gemm.a.data + i * (gemm.a.transposed ? 1 : gemm.a.row), gemm.a.row,
                gemm.b.data + j * (gemm.b.transposed ? gemm.b.row : 1), gemm.b.row, gemm.keep,
                gemm.result + i * gemm.row + j, gemm.row);
  }
}

}  // namespace tessera::cpu
