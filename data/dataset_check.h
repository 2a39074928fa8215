// Whether the files of a data set are as `prepare` wrote them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/token_stream.h"
#include "kernels/base/file_checksums.h"

namespace tessera {

// Reads all of a folder of shards: against the checksums in its dataset.json; without those, only headers and
// sizes are looked at. Error: no shards there, a dataset.json that is not valid.
std::vector<FileVerdict> verify_dataset(const std::filesystem::path& folder);

// More than this is not read at the start of a run: at some GB/s the start would be late by a second or more.
inline constexpr int64_t kMostVerifiedAtStart = int64_t{4} << 30;  // bytes

// Verifies the shards of a stream whose dataset.json has checksums, if they are at most `most_bytes`. Returns
// a notice where they are more, else "". Error: naming the first shard that is damaged.
std::string verify_at_start(const TokenStream& stream, int64_t most_bytes = kMostVerifiedAtStart);

}  // namespace tessera
