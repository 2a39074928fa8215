// DecodeBuilder: collects the operations of a decode step, with the numbers of the operations whose results
// they read.
#pragma once

#include <utility>
#include <vector>

#include "kernels/ops.h"

namespace tessera {

class DecodeBuilder {
 public:
  static constexpr int kEmbedding = -1, kLogits = -2;  // buffers, beside those of the stages

  void embed(const EmbeddingForward& op) {
    operations_.push_back({.op = op, .buffer = kEmbedding});
    residual_ = last();
  }
  FusedLinear& norm() { return norm_; }  // holds the norm in front of the next linear layer
  FusedLinear take_norm() { return std::exchange(norm_, {}); }

  // Adds an operation that reads the residual stream, or with `kLast` the result of the operation before it.
  // `buffer`: see DecodeOp
  enum class Reads { kResidual, kLast };
  template <class Op>
  void add(const Op& op, Reads reads, int buffer) {
    operations_.push_back({.op = op, .x = reads == Reads::kLast ? last() : residual_, .buffer = buffer});
  }
  // Adds a linear layer that reads the result of the operation before it and adds to the residual stream.
  void add_to_residual(const LinearForward& op, int buffer) {
    operations_.push_back({.op = op, .x = last(), .add = residual_, .buffer = buffer});
    residual_ = last();
  }

  std::vector<DecodeOp> take() { return std::move(operations_); }

 private:
  int last() const { return static_cast<int>(operations_.size()) - 1; }

  std::vector<DecodeOp> operations_;
  FusedLinear norm_ = {};
  int residual_ = DecodeOp::kNone;  // the operation that wrote the residual stream last
};

}  // namespace tessera
