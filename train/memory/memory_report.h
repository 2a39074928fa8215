// Where the memory went: a pure function of the ledger.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/backend.h"

namespace tessera {

// The peak by tag, beside what the arena obtained and what the driver (or the system) reports for this
// process.
std::string memory_table(const MemoryLedger& ledger, int64_t reserved_bytes, const DeviceTraits& device);

// What used_by_process of DeviceMemory is on that device
const char* drivers_figure(Device device);

// {"weights": bytes, ...}, every tag
nlohmann::ordered_json by_tag_json(const BytesByTag& bytes);

}  // namespace tessera
