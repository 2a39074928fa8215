// Attention by cuDNN's graph API: the vendor's fused kernels behind the arguments
// of attention.h, as a yardstick for ours.
//
// The same tensors, strides and log-sum-exp (natural log, fp32 [B, H, N]) as attn_forward and
// attn_backward, so that one's forward can be followed by the other's backward. The library is loaded when
// it is first asked for: a program that was built with cuDNN starts on machines without it. This header
// needs neither; without cuDNN at build time every use is refused.
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
// The version of the library that is loaded: 91900 and "9.19.0"; 0 and "" where none is.
int cudnn_version_number();
std::string cudnn_version();

// Why cuDNN is not asked to serve a problem, or nullptr. `arch` as in
// attention.h. Needs neither library nor device.
const char* cudnn_refusal(const AttnProblem& problem, int arch);
const char* cudnn_decode_refusal(const AttnDecodeProblem& problem, int arch);  // of decode()

// How a backward adds up dQ
enum class CudnnSums {
  kAnyOrder,    // in fp32, as the parts come: memory linear in N
  kFixedOrder,  // in fp32, in turns, the same bits every time: linear; slower. cuDNN from 9.25 on, on Hopper
  kAtOnce,  // from the stored gradients of all scores, B H N^2 of bf16, the same bits every time: quadratic.
            // A deterministic backward of cuDNN before 9.25, and of any version on other devices
};
// Bytes to lend, by formula: bounds of what cuDNN asks for, which it tells on a device alone. Checked with
// 9.14 and 9.19, but for the linear bound of a deterministic backward, which neither of them has.
int64_t cudnn_forward_workspace(const AttnProblem& problem);
int64_t cudnn_backward_workspace(const AttnProblem& problem, CudnnSums sums);

// What the library loaded here does. Where none is, it is taken to be older than 9.25.
CudnnSums cudnn_sums(int arch, bool deterministic);
CudnnSums cudnn_sums(int arch, bool deterministic, int version);
// Whether the library, if it can, is asked to add up in a fixed order: cudnn.cpp
bool cudnn_asks_for_fixed_order();
// What a plan says of the versions that its memory is about; "" where they do not matter.
std::string cudnn_sums_note(int arch, bool deterministic);

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
  // args.workspace is of cudnn_backward_workspace() bytes
  void backward(const AttnBackward& args, CUstream_st* stream);

  // One query of each sequence over a cache that is full: `starts` is not read. args.workspace is of
  // decode_workspace() bytes.
  void decode(const AttnDecode& args, CUstream_st* stream);

  // What cuDNN itself asks for; builds the graph.
  int64_t decode_workspace(const AttnDecode& args);
  int64_t forward_workspace(const AttnForward& args);
  int64_t backward_workspace(const AttnBackward& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::attention
