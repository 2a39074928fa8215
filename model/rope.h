// Rotary positions: of the first R channels of a head, the pair (x[i], x[i + R/2]) at position t is rotated
// by the angle t f_i. R is D unless only a share of the channels is rotated.
//
//   none     f_i = theta^(-2 i / R)                                         Su et al., arXiv:2104.09864
//   linear   f_i / factor                                                   Chen et al., arXiv:2306.15595
//   llama3   f_i for waves much shorter than the original context,          Llama 3, arXiv:2407.21783
//            f_i / factor for longer ones, a mean of both in between
//   yarn     the same with a ramp over i; cos and sin are multiplied        Peng et al., arXiv:2309.00071
//            by attention_factor
//
// With model.rope.local_theta, blocks with a window have angles of their own: "none", with that theta.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/stream.h"
#include "model/config.h"

namespace tessera {

std::vector<double> rope_frequencies(const ModelConfig& config);  // f_i, R / 2 of them
double rope_attention_factor(const Rope& rope);                   // of cos and sin

// cos and sin of positions 0 .. positions - 1: fp32 [positions, R / 2, 2], computed in fp64 and rounded once.
// None unless positions are rotary.
Tensor allocate_angles(const Stream& stream, Arena& arena, const ModelConfig& config, int64_t positions);
// Those of blocks with a window. None where they have no angles of their own.
Tensor allocate_local_angles(const Stream& stream, Arena& arena, const ModelConfig& config,
                             int64_t positions);

}  // namespace tessera
