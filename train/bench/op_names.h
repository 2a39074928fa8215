// What operations of a training step are called in tables and traces
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/config.h"

namespace tessera {

// "64 x 1024 x 768"
std::string text_of(const Shape& shape);

class OpNames {
 public:
  // GEMMs are called as the weights of `model` of the same shape are.
  explicit OpNames(const ModelConfig& model);
  std::string of(const AnyOp& op) const;  // "attention.qkv, forward", "layernorm forward"
  // Of these parts of a backward of a linear layer: "attention.qkv, dW". None: the pass that sums dX
  std::string of(const LinearBackward& op, std::span<const LinearBackward::Part> parts) const;

 private:
  std::string of_gemm(const Tensor& weight) const;
  std::map<std::string, std::string> weights_;  // by their shapes as text
};

// The shape that tells operations of the same name apart: of the first activation, or "rows x from x to" of a
// GEMM. Empty: there is none.
std::string shape_text(const AnyOp& op);

// The parts of a backward that cost something and are not among `told`: they run as one. None: a pass that
// sums dX is left, which need not be one.
std::vector<LinearBackward::Part> parts_besides(const LinearBackward& op,
                                                std::span<const LinearBackward::Part> told);

}  // namespace tessera
