// The text of an error: what a status of attention.h means, and for a launch that failed what CUDA says about
// it.
#pragma once

#include <cuda_runtime.h>

#include <string>

#include "kernels/attention/attention.h"

namespace tessera::cuda {

inline std::string failure_text(AttnStatus status) {
  std::string text = attn_status_text(status);
  if (status == ATTN_LAUNCH_FAILED) text += std::string(": ") + cudaGetErrorString(cudaGetLastError());
  return text;
}

}  // namespace tessera::cuda
