// Stream: a backend, the queue that its operations go into, and the scratch that they share. It is a value:
// copies of it mean the same queue. The backend and the workspace must outlive the last operation.
#pragma once

#include "kernels/backend.h"

namespace tessera {

class Stream {
 public:
  // A stream on the backend's own queue. Without a workspace it can run operations that need no scratch, such
  // as copies that do not convert.
  explicit Stream(Backend& backend, Tensor workspace = {})
      : backend_(&backend), launch_{.workspace = workspace, .stream = backend.stream()} {}

  template <class Op>
  void run(const Op& op) const {
    backend_->run(op, launch_);
  }
  void synchronize() const { backend_->synchronize(launch_.stream); }

  // Says which part of the model the operations that follow belong to, see OpPlace.
  void enter(int64_t block, bool backward) const {
    OpPlace& place = backend_->place();
    place.block = block, place.backward = backward;
  }

  Backend& backend() const { return *backend_; }
  Device device() const { return backend_->device(); }
  CUstream_st* queue() const { return launch_.stream; }
  const Tensor& workspace() const { return launch_.workspace; }
  const Launch& launch() const { return launch_; }

 private:
  Backend* backend_;
  Launch launch_;
};

}  // namespace tessera
