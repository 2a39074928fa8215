#include "train/bench/op_recorder.h"

namespace tessera {
namespace {

constexpr int64_t kCopiedElements = int64_t{64} << 20;  // fp32
constexpr int kCopies = 64;                             // some 11 ms on an H100

}  // namespace

OpRecorder::OpRecorder(Backend& backend, const ModelConfig& model)
    : stream_(backend),
      names_(model),
      arena_(backend.device() == Device::kCuda ? Arena::cuda() : Arena::host()) {
  if (backend.device() == Device::kCuda) {
    copied_ = arena_.alloc(MemoryTag::kData, "copied", DType::kF32, {kCopiedElements});
    copy_ = arena_.alloc(MemoryTag::kData, "copy", DType::kF32, {kCopiedElements});
    stream_.run(FillZero{copied_});
  }
  backend.add_observer(*this);
}

OpRecorder::~OpRecorder() { stream_.backend().remove_observer(*this); }

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
  stop(names_.of(*backward_, {&part, 1}), shape_text(backward_), [&] { return cost_of(*backward_, part); });
  parts_.push_back(part);
  start();
}

void OpRecorder::finish_backward() {
  const std::vector<LinearBackward::Part> rest = parts_besides(*backward_, parts_);
  OpCost cost;
  for (const auto part : rest) cost += cost_of(*backward_, part);
  stop(names_.of(*backward_, rest), shape_text(backward_), [&] { return cost; });
}

void OpRecorder::after(const AnyOp& op, Backend&, const Launch&) {
  if (own_) return;
  if (backward_) return finish_backward();
  stop(names_.of(op), shape_text(op), [&] { return cost_of(op); });
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
