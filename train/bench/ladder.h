// The ladder: the same attention five times, each rung with one idea more than the one below. Read them in
// this order; `./bench attention` measures them side by side.
//
//   naive         the N x N matrix is stored, by three matrix operations
//   row           it is never stored: a CTA computes one row, whole, in shared memory
//   tiled         a CTA computes a tile of rows, with a softmax that streams: a tile shares its keys
//   tensor_cores  products on tensor cores, in registers, with loads ahead (mma.sync)
//   hopper        warpgroups, the copy engine, roles for warps (wgmma)
//
// The list is data: what a rung serves, how it is called, and by formula what it moves. No CUDA header here.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "kernels/attention/attention.h"
#include "kernels/attention/choose.h"

namespace tessera::attention {

// Bytes that one call moves, by formula. Two readings, because caches decide which is true:
//   read, written    device memory, if a kernel reads each input once and writes each output once: all that
//                    is read again within a kernel comes from L2, nothing between kernels does
//   loaded, stored   what the kernels ask for, whoever answers: L1, L2 or device memory. What cuBLASLt reads
//                    again within a product is not known here and not counted.
struct Traffic {
  double read = 0, written = 0;
  double loaded = 0, stored = 0;
};

struct Rung {
  const char* name;     // on the command line
  const char* idea;     // one sentence
  const char* source;   // where to read it
  DType dtype;          // of q, k, v, out and their gradients
  int64_t most_tokens;  // 0: no limit of its own
  bool grouped_heads;   // serves kv_heads < heads
  // Null for naive, which is called through the Backend with AttentionKind::kNaive, and in a build without
  // CUDA. `arch` is the device's.
  AttnStatus (*forward)(const AttnForward& f, int arch, CUstream_st* stream);
  AttnStatus (*backward)(const AttnBackward& f, int arch, CUstream_st* stream);
  size_t (*backward_workspace)(const AttnProblem& p, int arch);
  Traffic (*forward_traffic)(const AttnProblem& p);
  Traffic (*backward_traffic)(const AttnProblem& p, bool deterministic);

  // Empty, or in a word or two why this rung cannot run that problem on that device.
  std::string why_not(const AttnProblem& p, const DeviceTraits& device) const;
};

std::span<const Rung> ladder();

}  // namespace tessera::attention
