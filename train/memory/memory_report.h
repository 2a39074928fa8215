// Memory by tag, as text and JSON. These are pure functions of the ledger.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "kernels/backend.h"

namespace tessera {

// The peak of each tag, the memory that the arena obtained, and the figure that the driver (or the system)
// has for this process
std::string memory_table(const MemoryLedger& ledger, int64_t reserved_bytes, const DeviceTraits& device);

// The name of DeviceMemory::used_by_process on that device
const char* drivers_figure(Device device);

// {"weights": bytes, ...}, every tag
nlohmann::ordered_json by_tag_json(const BytesByTag& bytes);

}  // namespace tessera
