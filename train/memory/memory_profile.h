// --memory-profile: the memory of a run over time, in three files. Pure functions of the recording and the
// plan.
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
  std::string run;  // a description of the run
};

// memory.json: every allocation and phase; by tag the peak of the recording, of the run and of the plan; the
// driver's figure at the time of the call.
std::string memory_json(const MemoryProfile& profile);

// memory_trace.json: the same in the Trace Event Format, for ui.perfetto.dev and chrome://tracing. A counter
// of bytes by tag, the phases as nested slices, every tensor as an async slice from its allocation to its
// release.
std::string memory_trace(const MemoryProfile& profile);

// memory.html: a page that holds `memory_json` and draws it; it needs no network.
std::string memory_page(const std::string& memory_json);
const char* memory_page_template();  // train/memory/memory_page.html, compiled in

// Makes the folder if it does not exist. Error: it cannot be made, or written to.
void prepare_profile_folder(const std::filesystem::path& folder);

// Writes the three files, replacing those of an earlier profile. Other files in the folder stay.
void write_memory_profile(const std::filesystem::path& folder, const MemoryProfile& profile);

}  // namespace tessera
