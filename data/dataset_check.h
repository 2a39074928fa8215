// Compares the files of a dataset with the checksums that `prepare` wrote.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/token_stream.h"
#include "kernels/base/file_checksums.h"

namespace tessera {

// Reads a folder of shards and compares them with the checksums in its dataset.json. Without checksums it
// only checks headers and sizes. Error: there are no shards, or dataset.json is not valid.
std::vector<FileVerdict> verify_dataset(const std::filesystem::path& folder);

// A run does not verify more data than this at its start: at a few GB/s that would take seconds.
inline constexpr int64_t kMostVerifiedAtStart = int64_t{4} << 30;  // bytes

// Verifies the shards of a stream, if its dataset.json has checksums and they have at most `most_bytes`.
// Returns a notice if they have more, else "". Error: names the first damaged shard.
std::string verify_at_start(const TokenStream& stream, int64_t most_bytes = kMostVerifiedAtStart);

}  // namespace tessera
