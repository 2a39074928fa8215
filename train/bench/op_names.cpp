#include "train/bench/op_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/expert_ops.h"
#include "kernels/op_cost.h"
#include "model/params.h"

namespace tessera {

std::string text_of(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : " x ", shape[i]);
  return text;
}

namespace {

std::string text_of_product(const Tensor& x, const Tensor& weight) {
  return fmt::format("{} x {} x {}", x.numel() / x.shape[-1], x.shape[-1], weight.shape[0]);
}

const char* name_of_part(LinearBackward::Part part) {
  switch (part) {
    case LinearBackward::Part::kWeight:
      return "dW";
    case LinearBackward::Part::kInput:
      return "dX";
  }
  return "";
}

std::string text_of(const AttentionPlan& plan) {
  const AttentionShape& s = plan.shape;
  std::string text = fmt::format("{} x {} x {} x {}", s.batch, s.heads, s.tokens, s.head_dim);
  if (s.kv_heads != s.heads) text += fmt::format(", {} of keys", s.kv_heads);
  if (s.mask.window > 0) text += fmt::format("{}{}", kWindowInShape, s.mask.window);
  if (s.mask.blocks.size > 0) {
    const auto queries = static_cast<double>(s.tokens), before = static_cast<double>(s.mask.offset);
    const double causal = queries * (before + (queries + 1) / 2);
    text += fmt::format(", sparse: {:.1f}% of the pairs", 100 * s.mask.blocks.causal_pairs / causal);
  }
  return text;
}

template <class Op>
std::string shape_of_op(const Op& a) {
  if constexpr (requires { text_of(a.plan); })
    return text_of(a.plan);
  else if constexpr (requires { a.logits; })
    return text_of(a.logits.shape);
  else if constexpr (requires { a.gate_up; })
    return text_of(a.gate_up.shape);
  else if constexpr (requires {
                       a.weight;
                       a.pre_activation;
                     })
    return text_of_product(a.x, a.weight);
  else if constexpr (requires { a.dy.shape; })
    return text_of(a.dy.shape);
  else if constexpr (requires { a.x.shape; })
    return text_of(a.x.shape);
  else if constexpr (requires { a.dy.tensor; })
    return text_of(a.dy.tensor.shape);
  else if constexpr (requires { a.x.tensor; })
    return text_of(a.x.tensor.shape);
  else if constexpr (requires { a.token_table; })
    return text_of(a.y.shape);
  else
    return "";
}

}  // namespace

OpNames::OpNames(const ModelConfig& model) {
  Params none;
  none.blocks.resize(1);
  for_each_param(none, model, [&](const ParamInfo& info, const Tensor&) {
    if (info.name == kPositionTable || (info.name == kTokenTable && !model.tied)) return;  // only looked up
    std::string name = info.name == kTokenTable ? kHead : info.name;
    if (info.block >= 0) name = name.substr(name.find('.', name.find('.') + 1) + 1);  // "blocks.0."
    if (name.ends_with(".weight")) name.resize(name.size() - std::string_view(".weight").size());
    std::string& known = weights_[text_of(info.shape)];
    known += (known.empty() ? "" : " or ") + name;
  });
}

std::string OpNames::of_gemm(const Tensor& weight) const {
  const auto found = weights_.find(text_of(weight.shape));
  return found == weights_.end() ? "GEMM" : found->second;
}

std::string OpNames::of(const AnyOp& op) const {
  const auto* forward = std::get_if<const LinearForward*>(&op);
  return forward ? of_gemm((*forward)->weight) + ", forward" : name_of(op);
}

std::string OpNames::of(const LinearBackward& op, std::span<const LinearBackward::Part> parts) const {
  return fmt::format("{}, {}", of_gemm(op.weight),
                     parts.empty()       ? "sum of dX"
                     : parts.size() == 1 ? name_of_part(parts[0])
                                         : "backward");
}

std::string shape_text(const AnyOp& op) {
  return std::visit([](const auto* a) { return shape_of_op(*a); }, op);
}

void WorkObserver::before(const AnyOp& op, Backend&, const Launch&) {
  const auto* backward = std::get_if<const LinearBackward*>(&op);
  backward_ = backward ? *backward : nullptr;
  told_.clear();
  begin_work();
}

void WorkObserver::after_part(LinearBackward::Part part, Backend&, const Launch&) {
  const LinearBackward& op = *backward_;
  end_work(names_.of(op, {&part, 1}), shape_text(&op), [&] { return cost_of(op, part); });
  told_.push_back(part);
  begin_work();
}

// Of a backward the parts that have not been told are one; after all of them a pass that sums dX is left,
// which need not be one.
void WorkObserver::after(const AnyOp& op, Backend&, const Launch&) {
  if (!backward_) return end_work(names_.of(op), shape_text(op), [&] { return cost_of(op); });
  std::vector<LinearBackward::Part> rest;
  OpCost cost;
  for (const auto part : {LinearBackward::Part::kWeight, LinearBackward::Part::kInput}) {
    const OpCost own = cost_of(*backward_, part);
    if (own == OpCost{} || std::ranges::find(told_, part) != told_.end()) continue;
    rest.push_back(part);
    cost += own;
  }
  end_work(names_.of(*backward_, rest), shape_text(op), [&] { return cost; });
}

}  // namespace tessera
