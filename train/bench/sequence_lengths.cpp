#include "train/bench/sequence_lengths.h"

#include <charconv>
#include <set>

#include "kernels/base/check.h"
#include "kernels/base/split.h"

namespace tessera {
namespace {

constexpr std::string_view kRange = "..";

int64_t parse_length(std::string_view number, std::string_view text) {
  int64_t length = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), length);
  check(
      error == std::errc{} && end == number.data() + number.size() && 1 <= length &&
          length <= kLongestSequence,
      "--seq-lens must be whole numbers from 1 to {} and ranges of them, as in 512..65536 or 512..4096,5000; "
      "found \"{}\" in \"{}\"",
      kLongestSequence, number, text);
  return length;
}

}  // namespace

std::vector<int64_t> parse_sequence_lengths(std::string_view text) {
  std::set<int64_t> lengths;
  for (const std::string_view part : split(text, ',')) {
    const size_t dots = part.find(kRange);
    const int64_t first = parse_length(part.substr(0, dots), text);
    const int64_t last = dots == part.npos ? first : parse_length(part.substr(dots + kRange.size()), text);
    check(first <= last, "--seq-lens must have ranges that go up, as in 512..65536; found \"{}\"", part);
    for (int64_t length = first; length < last; length *= 2) lengths.insert(length);
    lengths.insert(last);
  }
  return {lengths.begin(), lengths.end()};
}

}  // namespace tessera
