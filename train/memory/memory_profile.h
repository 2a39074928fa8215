// --memory-profile: the memory of a run over time, in three files. These are pure functions of the recording
// and the plan.
#pragma once

#include <filesystem>
#include <string>

#include "kernels/backend.h"

namespace tessera {

struct MemoryProfile {
  const MemoryLedger& ledger;  // a ledger that records
  const MemoryLedger& plan;
  int64_t reserved_bytes;  // that the arena reserved
  DeviceTraits device;
  std::string run;  // describes the run
};

// memory.json: every allocation and phase; for each tag the peak of the recording, of the run and of the
// plan; and the driver's figure at the time of the call.
std::string memory_json(const MemoryProfile& profile);

// memory_trace.json: the same in the Trace Event Format, for ui.perfetto.dev and chrome://tracing. It has a
// counter of bytes for each tag, the phases as nested slices, and every tensor as an async slice from its
// allocation to its release.
std::string memory_trace(const MemoryProfile& profile);

// memory.html: a page that contains `memory_json` and draws it; it needs no network.
std::string memory_page(const std::string& memory_json);
const char* memory_page_template();  // train/memory/memory_page.html, compiled in

// Makes the folder if it does not exist. Error: it cannot be made, or written to.
void prepare_profile_folder(const std::filesystem::path& folder);

// Writes the three files, and replaces those of an earlier profile. Other files in the folder stay.
void write_memory_profile(const std::filesystem::path& folder, const MemoryProfile& profile);

}  // namespace tessera
