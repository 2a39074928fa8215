// MemoryLedger: bytes in use now, and at the peak, by tag and by name.
//
// The arena enters every allocation and every release, so the ledger cannot miss one. The caller of alloc()
// names the tag. Reports are pure functions of the ledger.
//
// After record() the ledger also keeps the history: allocations, releases and phases (recording.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/base/recording.h"

namespace tessera {

class MemoryLedger {
 public:
  struct Entry {
    MemoryTag tag;
    std::string name;
    int64_t bytes;
    const void* data = nullptr;  // where it is; null: a plan has no memory
  };

  void enter(MemoryTag tag, std::string_view name, int64_t bytes, const void* data = nullptr);
  void release_last();  // releases come in the reverse order of allocations

  void record();  // keeps the history from now on; call it before the first allocation
  const MemoryRecording* recording() const { return recording_ ? &*recording_ : nullptr; }

  // The current phase of the work, from its constructor to the end of the scope. Phases nest. A phase costs
  // nothing unless the ledger records: `name` is a literal, and only its pointer is kept. Declare it after
  // the Arena::Scope of the same block, so that the phase is over when the Scope frees its memory.
  class Phase {
   public:
    enum Kind { kRecordAll, kRecordFirstFew };  // kRecordFirstFew: for phases that may repeat without end
    Phase(MemoryLedger& ledger, const char* name, int64_t number = MemoryRecording::kNone,
          Kind kind = kRecordAll);
    ~Phase() { end(); }
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

    void next(const char* name);  // ends this phase and begins another
    void end();

   private:
    MemoryRecording* recording_;
  };

  int64_t current_bytes() const { return total_; }
  int64_t peak_bytes() const { return peak_total_; }
  const BytesByTag& current() const { return current_; }
  const BytesByTag& at_peak() const { return at_peak_; }       // by tag, at the moment of the total's peak
  const std::string& peak_name() const { return peak_name_; }  // of the allocation that made the peak
  // Each tag's own peak, at moments that may differ
  const BytesByTag& peak_of_each() const { return peak_of_each_; }
  const std::vector<Entry>& live() const { return live_; }  // oldest first
  const Entry* holding(const void* data) const;  // the live allocation that has this byte; null: none has

 private:
  std::vector<Entry> live_;
  std::optional<MemoryRecording> recording_;
  BytesByTag current_{}, at_peak_{}, peak_of_each_{};
  int64_t total_ = 0, peak_total_ = 0;
  std::string peak_name_;
};

std::string format_by_tag(const BytesByTag& bytes);  // "weights 1.2 GiB, activations 512 MiB"; without zeros

}  // namespace tessera
