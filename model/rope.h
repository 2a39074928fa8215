// Rotary positions: in the first R channels of a head, the pair (x[i], x[i + R/2]) at position t is rotated
// by the angle t f_i. R is D unless only a share of the channels is rotated.
//
//   none     f_i = theta^(-2 i / R)                                         Su et al., arXiv:2104.09864
//   linear   f_i / factor                                                   Chen et al., arXiv:2306.15595
//   llama3   f_i for waves much shorter than the original context,          Llama 3, arXiv:2407.21783
//            f_i / factor for longer ones, a blend of both in between
//   yarn     as llama3, but blended over i; cos and sin are multiplied      Peng et al., arXiv:2309.00071
//            by attention_factor
//   longrope f_i / short_factors[i]; in sequences longer than the original Ding et al., arXiv:2402.13753
//            context f_i / long_factors[i]; attention_factor as for yarn
//
// With model.rope.local_theta, blocks with a window have their own angles: those of "none" with that theta.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/arena.h"
#include "kernels/stream.h"
#include "model/config.h"

namespace tessera {

// The R / 2 frequencies f_i. `sequence_length` is the length of the sequences, on which longrope depends.
std::vector<double> rope_frequencies(const ModelConfig& config, int64_t sequence_length);
// The factor of cos and sin. It is the model's attention_factor. If the model has none, it is 0.1 ln(factor)
// + 1 for yarn, and sqrt(1 + ln(factor) / ln(original context)) for longrope, where factor is context /
// original context, or 1 if that is smaller.
double rope_attention_factor(const ModelConfig& config);
double longrope_attention_factor(double factor, double original_context);

// The most tokens of a text for which longrope's short factors are used
int64_t short_context(const ModelConfig& config);

struct AngleTable {
  int64_t positions;                    // the number of positions in the table
  int64_t sequence_length = positions;  // see rope_frequencies()
};
// cos and sin of the positions 0 to positions - 1: fp32 [positions, R / 2, 2], computed in fp64 and rounded
// once. None unless positions are rotary.
Tensor allocate_angles(const Stream& stream, Arena& arena, const ModelConfig& config,
                       const AngleTable& table);
// The angles for tokens that are read one after another. With longrope, a text that ends within the original
// context uses the short factors, and a longer one the long factors. `of_long` is the table of the longer
// texts.
Tensor allocate_angles_by_length(const Stream& stream, Arena& arena, const ModelConfig& config,
                                 const Tensor& of_long);
// The same for blocks with a window. None if these have no angles of their own.
Tensor allocate_local_angles(const Stream& stream, Arena& arena, const ModelConfig& config,
                             const AngleTable& table);

}  // namespace tessera
