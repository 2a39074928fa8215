// Attention by cuDNN's graph API: the vendor's fused kernels behind the arguments of attention.h, as a
// yardstick for ours.
//
// The same tensors, strides and log-sum-exp (natural log, fp32 [B, H, N]) as attn_forward and attn_backward,
// so that one's forward can be followed by the other's backward. The library is loaded when it is first asked
// for: a program that was built with cuDNN starts on machines without it. This header needs neither; without
// cuDNN at build time every use is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/attention/attention.h"

namespace tessera::attention {

inline constexpr const char* kCudnnNotBuilt =
    "this program was built without cuDNN: run tools/install --cudnn, then configure and build again";
bool cudnn_built();

// False, with the reason, where cuDNN was not built in or its library cannot be loaded. Needs no device.
bool cudnn_available(std::string& why_not);
// Of the library that is loaded: 9.19.0. "" where none is.
std::string cudnn_version();

// Why cuDNN is not asked to serve a problem, or nullptr. `arch` as in attention.h. Needs neither library nor
// device.
const char* cudnn_refusal(const AttnProblem& problem, int arch);

// Bytes to lend, by formula: bounds of what cuDNN asks for, which it tells on a device alone. A deterministic
// backward stores the gradients of all scores, B H N^2 elements of bf16: its memory is quadratic in N.
int64_t cudnn_forward_workspace(const AttnProblem& problem);
int64_t cudnn_backward_workspace(const AttnProblem& problem, bool deterministic);

// cuDNN's handle on the current device, and a graph for every problem met so far. Not thread-safe.
// The first call for a problem, its strides and its mode builds a graph, which takes from milliseconds to a
// second; later calls only enqueue. Error: what cuDNN refuses, and a workspace smaller than it asks for.
// Pointers are multiples of 16 bytes.
class CudnnAttention {
 public:
  CudnnAttention();  // Error unless cudnn_available()
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  void forward(const AttnForward& args, void* workspace, size_t workspace_bytes, CUstream_st* stream);
  void backward(const AttnBackward& args,
                CUstream_st* stream);  // args.workspace is of cudnn_backward_workspace() bytes

  // What cuDNN itself asks for; builds the graph.
  int64_t forward_workspace(const AttnForward& args);
  int64_t backward_workspace(const AttnBackward& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::attention
