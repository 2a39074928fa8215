#include "train/memory/memory_report.h"

#include <nlohmann/json.hpp>

#include "kernels/base/text.h"

namespace tessera {

const char* drivers_figure(Device device) {
  return device == Device::kCuda ? "in use on the device, by the driver" : "peak resident set, by the system";
}

nlohmann::ordered_json by_tag_json(const BytesByTag& bytes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (int t = 0; t < kMemoryTags; ++t)
    json[name_of(static_cast<MemoryTag>(t))] = bytes[static_cast<size_t>(t)];
  return json;
}

std::string memory_table(const MemoryLedger& ledger, int64_t reserved_bytes, const DeviceTraits& device) {
  std::string text = fmt::format("memory at its peak on {}\n", device.name);
  const auto row = [&](std::string_view what, int64_t bytes) {
    text += fmt::format("  {:<36} {:>12}\n", what, format_bytes(bytes));
  };
  for (int i = 0; i < kMemoryTags; ++i)
    if (ledger.at_peak()[i]) row(name_of(static_cast<MemoryTag>(i)), ledger.at_peak()[i]);
  row("all tags", ledger.peak_bytes());
  row("obtained by the arena", reserved_bytes);
  const DeviceMemory memory = device_memory(device.device);
  row(drivers_figure(device.device), memory.used_by_process);
  // On a GPU this is the CUDA context, the loaded kernels and other processes. On the CPU pages count only
  // after they were first touched, so that it is a lower bound, and so is what was never touched.
  const int64_t others = memory.used_by_process - reserved_bytes;
  if (device.device == Device::kCuda)
    row("not in the ledger", others);
  else if (others >= 0)
    row("not in the ledger, at least", others);
  else
    row("of the arena never used, at least", -others);
  return text;
}

}  // namespace tessera
