// The workspaces of backwards. Plain C++, because their sizes are computed on machines without CUDA as well.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace tessera::attention {

// Hands out pieces of one buffer; with no buffer it only measures.
class Carver {
 public:
  explicit Carver(void* memory) : memory_(static_cast<uint8_t*>(memory)) {}

  template <class T>
  T* take(size_t count) {
    T* piece = memory_ ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
    used_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  size_t used() const { return used_; }

 private:
  static constexpr size_t kAlignment = 256;
  uint8_t* memory_;
  size_t used_ = 0;
};

// The workspace of a family that needs only delta
struct DeltaWorkspace {
  DeltaWorkspace(void* memory, const AttnProblem& p) {
    Carver carver(memory);
    delta = carver.take<float>(static_cast<size_t>(p.batch * p.heads * p.tokens));
    bytes = carver.used();
  }

  float* delta;  // [B, H, N]: rowsum(dO o O)
  size_t bytes;
};

// The size of a workspace, as a KernelFamily gives it
template <class Workspace>
size_t workspace_bytes(const AttnProblem& p) {
  return Workspace(nullptr, p).bytes;
}

}  // namespace tessera::attention
