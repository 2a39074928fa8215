// A learned sink is a score s that belongs to no key: the softmax of every row of its head has it beside the
// scores of the keys. With out and LSE of the keys,
//
//   LSE' = log(exp(LSE) + exp(s)),     out' = out exp(LSE - LSE')
//
// take their place: forwards that say so (KernelFamily::adds_sinks) have one more term in the sums of their
// rows, the others are followed by apply_sinks(). From these the kernels of the backward compute the
// gradients that they always compute: their P = exp(score - LSE') and rowsum(dout out') are those of the
// longer softmax. The sink has no value, so
//
//   ds = -(sum over the rows of exp(s - LSE') rowsum(dout out'))
#pragma once

#include "kernels/attention/family.h"
#include "kernels/attention/workspace.h"

namespace tessera::attention {

// Of the gradient: rows of all sequences whose sum is one number. Tiles of TiledRowStatistics may end behind
// a sequence.
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

// After the forward: out and lse, in place
AttnStatus apply_sinks(const AttnForward& f, CUstream_st* stream);
// dsinks, in a fixed order, of the rows' statistics, or where there are none, of out, dout and LSE;
// `workspace`: of SinkWorkspace
AttnStatus sink_gradients(const AttnBackward& f, TiledRowStatistics rows, void* workspace, CUstream_st* stream);

}  // namespace tessera::attention
