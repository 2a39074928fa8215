#include "train/bench/op_recorder.h"

namespace tessera {
namespace {

constexpr int64_t kCopiedElements = int64_t{64} << 20;  // fp32
constexpr int kCopies = 64;                             // some 11 ms on an H100

}  // namespace

OpRecorder::OpRecorder(Backend& backend, const ModelConfig& model)
    : WorkObserver(model),
      stream_(backend),
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

void OpRecorder::begin_work() {
  if (own_) return;
  running_ = make_timer(stream_);
  running_->start();
}

void OpRecorder::end_work(const std::string& operation, const std::string& shape,
                          const std::function<OpCost()>& cost) {
  if (own_) return;
  running_->stop();
  Measured& measured = measured_[{operation, shape}];
  const bool alike = !shape.empty() && measured.row.calls > 0;  // as the calls before
  if (!alike) measured.last = cost();
  measured.row.bytes += measured.last.bytes, measured.row.flops += measured.last.flops;
  measured.row.fp8_flops += measured.last.fp8_flops;
  ++measured.row.calls;
  measured.timers.push_back(std::move(running_));
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
