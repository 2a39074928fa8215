// Attention by cuDNN's graph API: the vendor's fused kernels behind the arguments
// of attention.h, as a yardstick for ours.
//
// It takes the same tensors and strides as attn_forward and attn_backward and writes the same log-sum-exp
// (natural log, fp32 [B, H, N]), so the forward of one can be followed by the backward of the other. The
// library is loaded when it is first needed: a program that was built with cuDNN also starts on machines
// without it. This header needs neither cuDNN's headers nor its library; without cuDNN at build time every
// use is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/attention/attention.h"

namespace tessera::attention {

inline constexpr const char* kCudnnNotBuilt =
    "this program was built without cuDNN: run tools/install --cudnn, then configure and build again";
bool cudnn_built();

// False, with the reason: cuDNN was not built in, or its library cannot be loaded. Needs no device.
bool cudnn_available(std::string& why_not);
// The version of the loaded library: 91900 and "9.19.0"; 0 and "" if none can be loaded.
int cudnn_version_number();
std::string cudnn_version();

// Why a problem is not given to cuDNN, or nullptr. `arch` is as in attention.h. Needs neither library nor
// device.
const char* cudnn_refusal(const AttnProblem& problem, int arch);
const char* cudnn_decode_refusal(const AttnDecodeProblem& problem, int arch);  // of decode()

// How a backward adds up dQ
enum class CudnnSums {
  kAnyOrder,    // in fp32, in the order in which the parts come: memory linear in N
  kFixedOrder,  // in fp32, one part after another, the same bits every time: linear; slower. cuDNN from 9.25
                // on, on Hopper
  kAtOnce,      // from the stored gradients of all scores, B H N^2 of bf16, the same bits every time:
                // quadratic. The deterministic backward of cuDNN before 9.25, and of any version on other
                // devices
};
// The workspace to give to cuDNN, by formula. cuDNN says only on a device how much it asks for; these
// formulas are upper bounds. They were checked with 9.14 and 9.19; the linear bound of a deterministic
// backward was not, as neither version has it.
int64_t cudnn_forward_workspace(const AttnProblem& problem);
int64_t cudnn_backward_workspace(const AttnProblem& problem, CudnnSums sums);

// How the loaded library adds up. If none is loaded, it is taken to be older than 9.25.
CudnnSums cudnn_sums(int arch, bool deterministic);
CudnnSums cudnn_sums(int arch, bool deterministic, int version);
// Whether a library that can add up in a fixed order is asked to: see cudnn.cpp
bool cudnn_asks_for_fixed_order();
// What a plan says about the versions of cuDNN for which its memory holds; "" if they do not matter.
std::string cudnn_sums_note(int arch, bool deterministic);

// Has cuDNN's handle on the current device, and a graph for every problem so far. Not thread-safe. The first
// call for a problem, its strides and its mode builds a graph, which takes from milliseconds to a second;
// later calls only enqueue. Error: cuDNN refuses the problem, or the workspace is smaller than it asks for.
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

  // One query of each sequence over a cache that is full: `starts` is not read. args.workspace has
  // decode_workspace() bytes.
  void decode(const AttnDecode& args, CUstream_st* stream);

  // The bytes that cuDNN itself asks for; builds the graph.
  int64_t decode_workspace(const AttnDecode& args);
  int64_t forward_workspace(const AttnForward& args);
  int64_t backward_workspace(const AttnBackward& args);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::attention
