// Sums over all tokens for the few weights of a router, in parts that are added up in their order.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/experts_gemm.cuh"
#include "kernels/workspace.h"

namespace tessera::cuda::expert_gemm {

// d (+)= the sum of `parts` matrices, in their order
constexpr int kPartThreads = 256;
template <class D>
__global__ __launch_bounds__(kPartThreads) void add_parts_kernel(const float* partials, int parts,
                                                                 int64_t count, D* d, bool accumulate) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPartThreads + threadIdx.x;
  if (i >= count) return;
  float sum = accumulate ? static_cast<float>(d[i]) : 0;
  for (int part = 0; part < parts; ++part) sum += partials[part * count + i];
  d[i] = static_cast<D>(sum);
}

// d (+)= a matrix of `count` sums over `terms` tokens. run(partials, part) writes the sums of each `part`
// tokens, one matrix after another; parts of at least kLeastOfPart tokens fill the GPU. The scratch is that
// of `op`.
constexpr int64_t kMostParts = 16, kLeastOfPart = 256;
inline bool has_room_for_parts(int64_t count) {
  return count * static_cast<int64_t>(sizeof(float)) <= kGemmWorkspaceBytes;
}
template <class D, class Run>
void sum_in_parts(D* d, bool accumulate, int64_t count, int64_t terms, const char* op, const Launch& on,
                  const Run& run) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float)),
                most = std::min({kMostParts, divide_up(terms, kLeastOfPart), kGemmWorkspaceBytes / bytes}),
                part = divide_up(terms, most), parts = divide_up(terms, part);
  auto* partials = reinterpret_cast<float*>(on.scratch(op, parts * bytes));
  run(partials, part);
  const auto blocks = static_cast<unsigned>(divide_up(count, kPartThreads));
  add_parts_kernel<<<blocks, kPartThreads, 0, on.stream>>>(partials, static_cast<int>(parts), count, d,
                                                           accumulate);
  TESSERA_CUDA_LAUNCHED();
}

// launch_weights() of a single expert in parts
template <class T, class SA, class SB, class D>
void launch_weights_in_parts(const Args<SA, SB, D>& args, const char* op, const Launch& on) {
  const int64_t count = args.height * args.width;
  if (!has_room_for_parts(count)) return launch_weights<T>(args, on.stream);
  sum_in_parts(args.d, args.add != nullptr, count, args.terms, op, on, [&](float* partials, int64_t part) {
    launch_weights<T>(Args<SA, SB, float>{.a = args.a,
                                          .b = args.b,
                                          .d = partials,
                                          .height = args.height,
                                          .width = args.width,
                                          .terms = args.terms,
                                          .matrix = count,
                                          .part = part},
                      on.stream);
  });
}

}  // namespace tessera::cuda::expert_gemm
