// The launch of a GEMM: tensor maps, grid, cluster.
#pragma once

#include "kernels/gemm/sm90/kernel.cuh"
#include "kernels/gemm/sm90/problem.h"
#include "kernels/hopper/cluster_launch.h"
#include "kernels/hopper/tensor_map.h"

namespace tessera::gemm {

// Rows of tiles that are walked together, so that what they read of a and b stays in L2
inline constexpr int kGroupRows = 2048, kRowsOfCluster = kCluster * kTileRows;

inline cudaError_t map(CUtensorMap& to, const MatrixBoxes& boxes) {
  return make_tensor_map(to, boxes) ? cudaSuccess : cudaErrorInvalidValue;
}

template <Major kB, Kind kKind, class Activation, Operands kOperands = Operands::kBf16>
cudaError_t launch(const Problem& p, int multiprocessors, cudaStream_t stream) {
  const auto kernel = gemm_kernel<kB, kKind, Activation, kOperands>;
  // TMA moves FP8 values in pairs, which are as wide as an element of bf16.
  constexpr int64_t kOfPair = kOperands == Operands::kBf16 ? 1 : 2;
  const int64_t pairs = p.k / kOfPair;
  const auto boxes = [](const Matrix& matrix, int64_t rows, int64_t columns, int box_rows) {
    return MatrixBoxes{
        .data = matrix.data, .rows = rows, .columns = columns, .ld = matrix.ld, .box_rows = box_rows};
  };
  const Matrix a{p.a.data, p.a.ld / kOfPair}, b{p.b.data, p.b.ld / kOfPair};
  Arguments args{.bias = static_cast<const uint32_t*>(p.bias),
                 .partials = p.partials,
                 .exponentials = p.exponentials,
                 .fp8 = p.fp8,
                 .m = static_cast<int>(p.m),
                 .n = static_cast<int>(p.n),
                 .row_tiles = static_cast<int>(cuda::divide_up(p.m, kRowsOfCluster)),
                 .column_tiles = static_cast<int>(cuda::divide_up(p.n, kTileColumns)),
                 .steps = static_cast<int>(cuda::divide_up(pairs, kBlockK)),
                 .group = kGroupRows / kRowsOfCluster};
  cudaError_t status = map(args.a, boxes(a, p.m, pairs, kTileRows));
  if (status == cudaSuccess)
    status = kB == Major::kSum ? map(args.b, boxes(b, p.n, pairs, kTileColumns / kCluster))
                               : map(args.b, boxes(b, p.k, p.n, kBlockK / kCluster));
  if (status == cudaSuccess) status = map(args.d, boxes(p.d, p.m, p.n, kTileRows));
  if (status == cudaSuccess && kKind != Kind::kPlain && kKind != Kind::kExp)
    status = map(args.e, boxes(p.e, p.m, p.n, kTileRows));
  if (status != cudaSuccess) return status;

  const int clusters = multiprocessors / kCluster, tiles = args.row_tiles * args.column_tiles;
  return launch_clusters(kernel, tiles < clusters ? tiles : clusters, kCluster, kThreads, kSharedBytes,
                         stream, args);
}

}  // namespace tessera::gemm
