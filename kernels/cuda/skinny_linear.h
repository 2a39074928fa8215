// Linear layers of a decode step: products of few rows, which cost as much as reading the weight.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops.h"

namespace tessera::cuda {

enum class RowNorm : uint8_t { kNone, kLayerNorm, kRmsNorm };
using Epilogue = FusedLinear::Epilogue;

// y = epilogue(norm(x) weight^T + bias) + add. With kSwiglu the weight has O rows of gates, then O of up. All
// tensors have `dtype`. norm(x) is rounded to it, as the separate operation would; sums are fp32.
struct SkinnyLinear {
  DType dtype;
  int64_t N, C, O;  // x [N, C], weight [O, C], y [N, O]
  const void *x, *weight;
  void* y;
  const void *bias = nullptr, *add = nullptr;  // [O] (kSwiglu: [2 O]), [N, O]
  RowNorm norm = RowNorm::kNone;
  const void *norm_weight = nullptr, *norm_bias = nullptr;  // [C]
  float epsilon = 0;
  Epilogue epilogue = Epilogue::kNone;
};

// Whether the kernel serves it: up to 8 rows, which consist of whole packs of 16 bytes and fit the shared
// memory of a block.
bool serves(const SkinnyLinear& a);

// The device, and whether the kernel may start before the kernel in front of it has ended (launch.cuh).
struct SkinnyLaunch {
  int multiprocessors;
  bool overlap;
  cudaStream_t stream;
};
void run(const SkinnyLinear& a, const SkinnyLaunch& on);

}  // namespace tessera::cuda
