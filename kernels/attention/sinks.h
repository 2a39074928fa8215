// A learned sink is a score s that belongs to no key: it takes part in the softmax of every row of its head.
// With out and LSE, the output and the log-sum-exp over the keys,
//
//   LSE' = log(exp(LSE) + exp(s)),     out' = out exp(LSE - LSE')
//
// take their place. Some forwards add one more term to the sums of their rows (KernelFamily::adds_sinks);
// after the others apply_sinks() runs. The kernels of the backward do not change: from LSE' and out' they
// compute P = exp(score - LSE') and rowsum(dout out') of the softmax with the sink. The sink has no value, so
//
//   ds = -(sum over the rows of exp(s - LSE') rowsum(dout out'))
#pragma once

#include "kernels/attention/family.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention {

// For the gradient of a sink, this many rows of all sequences are first added to one number. Tiles of
// TiledRowStatistics may end after the end of a sequence.
inline constexpr int kSinkRows = 256;
inline int64_t sink_sums(const AttnProblem& p) { return (p.batch * p.tokens + kSinkRows - 1) / kSinkRows; }
inline int64_t most_sink_sums(const AttnProblem& p) {
  return p.batch * (p.tokens + kSinkRows - 1) / kSinkRows + p.batch;
}

struct SinkWorkspace {
  SinkWorkspace(void* memory, const AttnProblem& p) {
    Carver carver(memory);
    sums = carver.take<float>(static_cast<size_t>(p.heads * most_sink_sums(p)));
    bytes = carver.used();
  }

  float* sums;  // [heads, up to most_sink_sums()]
  size_t bytes;
};

// Runs after the forward, and changes out and lse in place.
AttnStatus apply_sinks(const AttnForward& f, CUstream_st* stream);
// Computes dsinks in a fixed order, from the statistics of rows, or if there are none from out, dout and LSE.
// `workspace`: SinkWorkspace's memory
AttnStatus sink_gradients(const AttnBackward& f, TiledRowStatistics rows, void* workspace, CUstream_st* stream);

}  // namespace tessera::attention
