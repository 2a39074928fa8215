// The names of a training step's operations in tables and traces
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/backend.h"
#include "kernels/op_cost.h"
#include "model/config.h"

namespace tessera {

// "64 x 1024 x 768"
std::string text_of(const Shape& shape);

class OpNames {
 public:
  // GEMMs are named after the weights of `model` that have the same shape.
  explicit OpNames(const ModelConfig& model);
  std::string of(const AnyOp& op) const;  // "attention.qkv, forward", "layernorm forward"
  // The name for these parts of the backward of a linear layer: "attention.qkv, dW". No parts: the pass that
  // sums up dX
  std::string of(const LinearBackward& op, std::span<const LinearBackward::Part> parts) const;

 private:
  std::string of_gemm(const Tensor& weight) const;
  std::map<std::string, std::string> weights_;  // the names of weights by their shapes, as text
};

// The shape that distinguishes operations of the same name: that of the first activation, or "rows x from x
// to" for a GEMM. Empty: there is none.
std::string shape_text(const AnyOp& op);

// How the shape of attention within a window ends, before the window's tokens: "1 x 16 x 32768 x 128, window
// 1024"
inline constexpr std::string_view kWindowInShape = ", window ";

// Is told of each operation as one piece of work. For the backward of a linear layer it is told of each part
// that the backend reports, and of the rest as one piece.
class WorkObserver : public OpObserver {
 public:
  explicit WorkObserver(const ModelConfig& model) : names_(model) {}
  void before(const AnyOp& op, Backend& backend, const Launch& launch) final;
  void after(const AnyOp& op, Backend& backend, const Launch& launch) final;
  void after_part(LinearBackward::Part part, Backend& backend, const Launch& launch) final;

 protected:
  virtual void begin_work() = 0;
  // `cost` may be asked for or not.
  virtual void end_work(const std::string& name, const std::string& shape,
                        const std::function<OpCost()>& cost) = 0;

 private:
  OpNames names_;
  const LinearBackward* backward_ = nullptr;  // the backward that is running
  std::vector<LinearBackward::Part> told_;    // its parts
};

}  // namespace tessera
