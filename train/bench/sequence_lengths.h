// Parses the sequence lengths of the benchmarks.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tessera {

inline constexpr int64_t kLongestSequence = 10'000'000;  // the most that model.context takes

// Accepts "1024,2048", "512..65536", "512..4096,5000": lengths and ranges with commas between them. A..B
// means A, its doublings below B, and B. The result is in ascending order, each length once. Error: anything
// else, and numbers that are not from 1 to kLongestSequence.
std::vector<int64_t> parse_sequence_lengths(std::string_view text);

}  // namespace tessera
