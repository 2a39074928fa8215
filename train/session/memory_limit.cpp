#include "train/session/memory_limit.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include "kernels/base/arena.h"
#include "kernels/base/text.h"
#include "train/session/gpu_users.h"

namespace tessera {
namespace {

constexpr double kLeastWithoutUnit = 1 << 20;  // bytes: a smaller number is one whose unit was left out
constexpr double kUsablePinned = 0.9;          // of the host's free memory
constexpr double kLargestSize = 1 << 20;       // TiB; far beyond any device, and well within int64_t in bytes

// Bytes of a unit in lower case; 0: unknown.
double unit_bytes(std::string_view unit) {
  if (unit.empty() || unit == "b") return 1;
  constexpr std::string_view kPrefixes = "kmgt";
  const size_t prefix = kPrefixes.find(unit[0]);
  if (prefix == std::string_view::npos) return 0;
  const auto power = static_cast<double>(prefix + 1);
  const std::string_view rest = unit.substr(1);
  return rest.empty() || rest == "i" || rest == "ib" ? std::pow(1024.0, power)
         : rest == "b"                               ? std::pow(1000.0, power)
                                                     : 0;
}

int64_t allowance(Device device, int64_t of_cuda, int64_t ranks) {
  return device == Device::kCuda ? of_cuda + (ranks > 1 ? kAllowanceNccl : 0) : 0;
}

}  // namespace

MemoryLimit MemoryLimit::shared_by(Device device, int64_t ranks) const {
  MemoryLimit share = *this;
  if (device == Device::kCpu) share.bytes /= ranks, share.total /= ranks;
  return share;
}

std::string MemoryLimit::free_text() const {
  return format_bytes(bytes) + " are free" + (others.empty() ? "" : fmt::format(" ({})", others));
}

int64_t pinnable_memory(int64_t ranks) {
  return static_cast<int64_t>(kUsablePinned * static_cast<double>(device_memory(Device::kCpu).free)) / ranks;
}

MemoryLimit present_memory(Device device, int64_t ranks) {
  const std::string others = device == Device::kCuda ? settled_gpu_use().text_of_others() : "";
  const DeviceMemory memory = device_memory(device);
  const int64_t not_ours = std::min(memory.free, allowance(device, kAllowanceLater, ranks));
  MemoryLimit limit{
      .bytes = memory.free - not_ours, .total = memory.total, .not_ours = not_ours, .others = others};
  if (device == Device::kCuda) limit.pinned = pinnable_memory(ranks);
  return limit;
}

MemoryLimit given_memory(Device device, int64_t total, int64_t ranks) {
  const int64_t not_ours = std::min(total, allowance(device, kAllowanceCuda, ranks));
  return {.bytes = total - not_ours, .total = total, .not_ours = not_ours, .given = true};
}

int64_t parse_bytes(std::string_view text) {
  constexpr const char* kExpected =
      "a size in bytes, such as 80GiB, 79.6GiB, 141GB, 80G (= 80GiB) or 85899345920";
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  std::string unit(end, text.data() + text.size());
  if (unit.starts_with(' ')) unit.erase(0, 1);
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const double one = unit_bytes(unit);
  check(error == std::errc{} && std::isfinite(number) && one > 0, "\"{}\" is not a size: it must be {}", text,
        kExpected);
  const double bytes = std::floor(number * one);
  check(!unit.empty() || bytes >= kLeastWithoutUnit || bytes < 1,
        "\"{0}\" without a unit is {0} bytes: write {0}GiB, or {0}B for bytes; it must be {1}", text,
        kExpected);
  check(bytes >= 1, "\"{}\" is less than a byte: it must be {}", text, kExpected);
  check(bytes <= kLargestSize * std::pow(1024.0, 4), "\"{}\" is larger than any memory: it must be {}", text,
        kExpected);
  return static_cast<int64_t>(bytes);
}

}  // namespace tessera
