// Memory by tag: pure functions of the ledger.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/backend.h"

namespace tessera {

// The peak by tag, the memory that the arena obtained, and the driver's (or the system's) figure for this
// process
std::string memory_table(const MemoryLedger& ledger, int64_t reserved_bytes, const DeviceTraits& device);

// A name for DeviceMemory::used_by_process on that device
const char* drivers_figure(Device device);

// {"weights": bytes, ...}, every tag
nlohmann::ordered_json by_tag_json(const BytesByTag& bytes);

}  // namespace tessera
