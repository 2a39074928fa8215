// --memory-profile: where the memory went and when, in three files for three readers. Pure functions of what
// a run recorded and planned.
#pragma once

#include <filesystem>
#include <string>

#include "kernels/backend.h"

namespace tessera {

struct MemoryProfile {
  const MemoryLedger& ledger;  // one that records
  const MemoryLedger& plan;
  int64_t reserved_bytes;  // by the arena
  DeviceTraits device;
  std::string run;  // which run this is, for a reader
};

// memory.json: every allocation and phase, the peak of the recording and of the run by tag, the plan's, and
// the driver's figure as of now.
std::string memory_json(const MemoryProfile& profile);

// memory_trace.json: the same in the Trace Event Format, for ui.perfetto.dev and chrome://tracing. A counter
// of bytes by tag, the phases as nested slices, every tensor as an async slice from birth to death.
std::string memory_trace(const MemoryProfile& profile);

// memory.html: a page that holds `memory_json` and draws it; it needs no network.
std::string memory_page(const std::string& memory_json);
const char* memory_page_template();  // train/memory/memory_page.html, compiled in

// Makes the folder if need be. Error: it cannot be made, or written to.
void prepare_profile_folder(const std::filesystem::path& folder);

// Writes the three files, replacing those of an earlier profile; whatever else is in the folder stays.
void write_memory_profile(const std::filesystem::path& folder, const MemoryProfile& profile);

}  // namespace tessera
