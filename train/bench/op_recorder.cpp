#include "train/bench/op_recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/params.h"

namespace tessera {
namespace {

constexpr int64_t kCopiedElements = int64_t{64} << 20;  // fp32
constexpr int kCopies = 64;                             // some 11 ms on an H100

std::string text_of(const Shape& shape) {
  std::string text;
  for (int i = 0; i < shape.rank(); ++i) text += fmt::format("{}{}", i == 0 ? "" : " x ", shape[i]);
  return text;
}

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
  return text;
}

// The shape that tells rows of the same operation apart: of its first activation. Empty: one row for all.
template <class Op>
std::string shape_of(const Op& a) {
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

OpRecorder::OpRecorder(Backend& backend, const ModelConfig& model)
    : stream_(backend), arena_(backend.device() == Device::kCuda ? Arena::cuda() : Arena::host()) {
  if (backend.device() == Device::kCuda) {
    copied_ = arena_.alloc(MemoryTag::kData, "copied", DType::kF32, {kCopiedElements});
    copy_ = arena_.alloc(MemoryTag::kData, "copy", DType::kF32, {kCopiedElements});
    stream_.run(FillZero{copied_});
  }
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
  backend.add_observer(*this);
}

OpRecorder::~OpRecorder() { stream_.backend().remove_observer(*this); }

std::string OpRecorder::name_of_gemm(const Tensor& weight) const {
  const auto found = weights_.find(text_of(weight.shape));
  return found == weights_.end() ? "GEMM" : found->second;
}

void OpRecorder::let_host_get_ahead() {
  own_ = true;
  for (int i = 0; copy_ && i < kCopies; ++i) stream_.run(Copy{copied_, copy_});
  own_ = false;
}

void OpRecorder::start() {
  running_ = make_timer(stream_);
  running_->start();
}

void OpRecorder::stop(const std::string& operation, const std::string& shape,
                      const std::function<OpCost()>& cost) {
  running_->stop();
  Measured& measured = measured_[{operation, shape}];
  const bool alike = !shape.empty() && measured.row.calls > 0;  // as the calls before
  if (!alike) measured.last = cost();
  measured.row.bytes += measured.last.bytes, measured.row.flops += measured.last.flops;
  measured.row.fp8_flops += measured.last.fp8_flops;
  ++measured.row.calls;
  measured.timers.push_back(std::move(running_));
}

void OpRecorder::before(const AnyOp& op, Backend&, const Launch&) {
  if (own_) return;
  const auto* backward = std::get_if<const LinearBackward*>(&op);
  backward_ = backward ? *backward : nullptr;
  parts_.clear();
  start();
}

void OpRecorder::after_part(LinearBackward::Part part, Backend&, const Launch&) {
  if (own_ || !backward_) return;
  stop(fmt::format("{}, {}", name_of_gemm(backward_->weight), name_of_part(part)),
       text_of_product(backward_->x, backward_->weight), [&] { return cost_of(*backward_, part); });
  parts_.push_back(part);
  start();
}

// The parts that have not been told, as one; after all of them a pass that sums dX, which need not be one
void OpRecorder::finish_backward() {
  std::vector<LinearBackward::Part> rest;
  OpCost cost;
  for (const auto part : {LinearBackward::Part::kWeight, LinearBackward::Part::kInput}) {
    const OpCost own = cost_of(*backward_, part);
    if (own == OpCost{} || std::ranges::find(parts_, part) != parts_.end()) continue;
    rest.push_back(part);
    cost += own;
  }
  stop(fmt::format("{}, {}", name_of_gemm(backward_->weight),
                   rest.empty()       ? "sum of dX"
                   : rest.size() == 1 ? name_of_part(rest[0])
                                      : "backward"),
       text_of_product(backward_->x, backward_->weight), [&] { return cost; });
}

void OpRecorder::after(const AnyOp& op, Backend&, const Launch&) {
  if (own_) return;
  if (backward_) return finish_backward();
  const std::string shape = std::visit([](const auto* a) { return shape_of(*a); }, op);
  const auto* forward = std::get_if<const LinearForward*>(&op);
  const std::string name = forward ? name_of_gemm((*forward)->weight) + ", forward" : name_of(op);
  stop(name, shape, [&] { return cost_of(op); });
}

void OpRecorder::clear() { measured_.clear(); }

std::vector<RooflineRow> OpRecorder::rows(int64_t steps) {
  const auto each = static_cast<double>(steps);
  std::vector<RooflineRow> rows;
  for (const auto& [key, measured] : measured_) {
    double ms = 0;
    for (const std::unique_ptr<Timer>& timer : measured.timers) ms += timer->milliseconds();
    const RooflineRow& all = measured.row;
    rows.push_back({.operation = key.first,
                    .shape = key.second,
                    .calls = all.calls / steps,
                    .ms = ms / each,
                    .bytes = all.bytes / each,
                    .flops = all.flops / each,
                    .fp8_flops = all.fp8_flops / each});
  }
  return rows;
}

}  // namespace tessera
