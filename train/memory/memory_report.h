// Where the memory went: a pure function of the ledger.
#pragma once

#include <string>

#include "kernels/backend.h"

namespace tessera {

// The peak by tag, beside what the arena obtained and what the driver (or the system) reports for this
// process.
std::string memory_table(const MemoryLedger& ledger, int64_t reserved_bytes, const DeviceTraits& device);

}  // namespace tessera
