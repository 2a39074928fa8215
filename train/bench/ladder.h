// The ladder: six rungs that compute the same attention, each with one idea more than the rung below, and a
// seventh for masks whose queries choose blocks. Read them in this order; `./bench attention` measures them
// side
// by side.
//
//   naive         three matrix operations; the N x N matrix is stored         kernels/cuda/attention.cu
//   row           a CTA computes one row in shared memory; nothing is stored  kernels/attention/row/
//   tiled         a CTA computes a tile of rows, with a softmax that streams  kernels/attention/f32/
//   tensor_cores  mma.sync: operands in registers, with loads ahead           kernels/attention/sm80/
//   hopper        wgmma: warpgroups, TMA, roles for warps                     kernels/attention/sm90/
//   hopper_fp8    the products of the forward in FP8, with a scale a block    kernels/attention/sm90/fp8_*
//   mixture       queries gathered by the blocks that they choose             kernels/attention/mixture/
//                 (only masks such as chosen:8x512)
//
// A rung is a family of kernels (kernels/attention/family.h), with formulas for the bytes that it moves.
#pragma once

#include <span>
#include <string>

#include "kernels/attention/choose.h"
#include "kernels/attention/family.h"
#include "kernels/attention/traffic.h"

namespace tessera::attention {

struct Rung {
  const char* name;            // on the command line
  const KernelFamily* family;  // null: naive, which is called through the Backend with AttentionKind::kNaive
  double least_flops;          // FLOP/s that any GPU reaches
  Traffic (*forward_formula)(const AttnProblem& p, TileRows rows);
  Traffic (*backward_formula)(const AttnProblem& p, TileRows rows);

  DType dtype() const;  // of q, k, v, out and their gradients
  Traffic forward_traffic(const AttnProblem& p, int arch) const;
  Traffic backward_traffic(const AttnProblem& p, int arch) const;
  AttnProblem of_rung(AttnProblem p) const;  // the same problem; in FP8 if the rung is
  // Empty, or a word or two on why this rung cannot run this problem on this device.
  std::string why_not(const AttnProblem& p, const DeviceTraits& device) const;
};

std::span<const Rung> ladder();
// The highest rung that this device can run in bf16
const Rung& best_rung(int arch);

}  // namespace tessera::attention
