#include "kernels/base/ledger.h"

#include <algorithm>

#include "kernels/base/check.h"
#include "kernels/base/text.h"

namespace tessera {

const char* name_of(MemoryTag tag) {
  constexpr const char* kNames[kMemoryTags] = {"weights",     "gradients",     "optimizer",
                                               "activations", "attention",     "cache",
                                               "workspace",   "communication", "data"};
  return kNames[static_cast<int>(tag)];
}

void MemoryLedger::enter(MemoryTag tag, std::string_view name, int64_t bytes, const void* data) {
  const int at = static_cast<int>(tag);
  live_.push_back({tag, std::string(name), bytes, data});
  current_[at] += bytes;
  total_ += bytes;
  peak_of_each_[at] = std::max(peak_of_each_[at], current_[at]);
  if (total_ > peak_total_) {
    peak_total_ = total_;
    at_peak_ = current_;
    peak_name_ = name;
  }
  if (recording_) recording_->born(tag, name, bytes);
}

void MemoryLedger::release_last() {
  check(!live_.empty(), "the memory ledger has nothing left to release");
  current_[static_cast<int>(live_.back().tag)] -= live_.back().bytes;
  total_ -= live_.back().bytes;
  live_.pop_back();
  if (recording_) recording_->last_died();
}

const MemoryLedger::Entry* MemoryLedger::holding(const void* data) const {
  const auto* byte = static_cast<const char*>(data);
  const auto holds = [&](const Entry& entry) {
    const auto* first = static_cast<const char*>(entry.data);
    return first && first <= byte && byte < first + entry.bytes;
  };
  const auto found = std::ranges::find_if(live_, holds);
  return found == live_.end() ? nullptr : &*found;
}

void MemoryLedger::record() {
  check(live_.empty(), "the memory ledger must record from before the first allocation");
  recording_.emplace();
}

MemoryLedger::Phase::Phase(MemoryLedger& ledger, const char* name, int64_t number, Kind kind)
    : recording_(ledger.recording_ ? &*ledger.recording_ : nullptr) {
  if (recording_) recording_->begin_phase(name, number, kind == kRecordFirstFew);
}

void MemoryLedger::Phase::next(const char* name) {
  if (!recording_) return;
  recording_->end_phase();
  recording_->begin_phase(name, MemoryRecording::kNone, false);
}

void MemoryLedger::Phase::end() {
  if (recording_) recording_->end_phase();
  recording_ = nullptr;
}

std::string format_by_tag(const BytesByTag& bytes) {
  std::string text;
  for (int i = 0; i < kMemoryTags; ++i)
    if (bytes[i])
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<MemoryTag>(i)),
                          format_bytes(bytes[i]));
  return text.empty() ? "nothing" : text;
}

}  // namespace tessera
