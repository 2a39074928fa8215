// Stream: a backend, the queue that its operations go into, and the scratch that they share. A value: copies
// mean the same queue. The backend and the workspace must outlive the last operation.
#pragma once

#include "kernels/backend.h"
#include "kernels/base/check.h"

namespace tessera {

class Stream {
 public:
  // On the backend's own stream. Without a workspace it runs what needs no scratch, such as copies that do
  // not convert.
  explicit Stream(Backend& backend, Tensor workspace = {})
      : backend_(&backend), launch_{.workspace = workspace, .stream = backend.stream()} {}

  template <class Op>
  void run(const Op& op) const {
    if (!chain_) return backend_->run(op, launch_);
    if constexpr (std::is_constructible_v<ChainedOp, const Op&>) {
      chain_->push_back(op);
    } else {
      fail("{} cannot be part of a fused decode step", Op::kName);
    }
  }
  // A stream that runs nothing: what it is given goes to the end of `chain`, which must outlive it.
  Stream into(std::vector<ChainedOp>& chain) const {
    Stream stream = *this;
    stream.chain_ = &chain;
    return stream;
  }
  void synchronize() const { backend_->synchronize(launch_.stream); }

  Backend& backend() const { return *backend_; }
  Device device() const { return backend_->device(); }
  CUstream_st* queue() const { return launch_.stream; }
  const Tensor& workspace() const { return launch_.workspace; }
  const Launch& launch() const { return launch_; }

 private:
  Backend* backend_;
  Launch launch_;
  std::vector<ChainedOp>* chain_ = nullptr;
};

}  // namespace tessera
