#include "kernels/base/recording.h"

#include <fmt/core.h>

namespace tessera {

MemoryRecording::Moment MemoryRecording::now(int64_t order) {
  last_ = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start_).count();
  return {order, last_};
}

void MemoryRecording::born(MemoryTag tag, std::string_view name, int64_t bytes) {
  full_ = full_ || allocations_.size() >= kMostAllocations;
  if (full_) return;
  const int phase = open_.empty() ? kNone : open_.back();
  if (is_skipped()) {
    live_.push_back(kNone);
    return;
  }
  live_.push_back(static_cast<int>(allocations_.size()));
  allocations_.push_back(
      {.tag = tag, .name = std::string(name), .bytes = bytes, .phase = phase, .born = now(order_++)});
}

void MemoryRecording::last_died() {
  if (full_) return;
  if (live_.back() != kNone) allocations_[static_cast<size_t>(live_.back())].died = now(order_++);
  live_.pop_back();
}

void MemoryRecording::begin_phase(const char* name, int64_t number, bool repeats) {
  full_ = full_ || phases_.size() >= kMostPhases;
  if (full_) return;
  const int parent = open_.empty() ? kNone : open_.back();
  const int repetition = is_skipped() || !repeats ? 0 : ++repetitions_[{parent, name}];
  if (is_skipped() || repetition > kFirstFew) {
    if (!is_skipped()) skip(parent);
    open_.push_back(kNone);
    return;
  }
  open_.push_back(static_cast<int>(phases_.size()));
  if (repeats && number == kNone) number = repetition;
  phases_.push_back({.name = name, .number = number, .parent = parent, .begin = now(order_)});
}

void MemoryRecording::end_phase() {
  if (full_) return;
  const int phase = open_.back();
  open_.pop_back();
  if (phase != kNone) phases_[static_cast<size_t>(phase)].end = now(order_);
  if (phase == kNone && !is_skipped()) phases_.back().end = now(order_);  // nothing was recorded within
}

// Extends the last phase if that was skipped as well, so that a long run adds no further entries.
void MemoryRecording::skip(int parent) {
  if (phases_.empty() || !phases_.back().skipped || phases_.back().parent != parent)
    phases_.push_back(
        {.name = "not recorded", .number = kNone, .parent = parent, .begin = now(order_), .skipped = true});
}

std::string MemoryRecording::path(int phase) const {
  if (phase == kNone) return "";
  const Phase& p = phases_[static_cast<size_t>(phase)];
  std::string text = path(p.parent);
  if (!text.empty()) text += '/';
  text += p.name;
  return p.number == kNone ? text : fmt::format("{} {}", text, p.number);
}

}  // namespace tessera
