// Every configuration that ships must run on every device: planned here over an empty arena, without the
// device.
#include <gtest/gtest.h>

#include "kernels/attention/cudnn/cudnn.h"
#include "train/device.h"

namespace tessera {
namespace {

TEST(ShippedConfigs, HaveKernelsOnEveryDevice) {
  const std::vector<DeviceTraits> devices{{.device = Device::kCuda, .arch = 80, .name = "A100"},
                                          {.device = Device::kCuda, .arch = 90, .name = "H200"},
                                          {}};
  int configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/configs")) {
    ++configs;
    for (const DeviceTraits& device : devices)
      for (const char* attention : {"naive", "flash", "cudnn"}) {
        if (attention_kind(attention) == AttentionKind::kCudnn &&
            (device.device == Device::kCpu || !attention::cudnn_built()))
          continue;
        SCOPED_TRACE(entry.path().string() + " on " + device.name + ", " + attention);
        const std::vector<std::string> overrides{"train.micro_batch=1",
                                                 std::string("model.attention=") + attention};
        const Config config = load_config(entry.path(), overrides);
        EXPECT_NO_THROW(EXPECT_GT(plan_memory(run_shape(config, device), device).peak_bytes(), 0));
      }
  }
  EXPECT_GE(configs, 5);
}

}  // namespace
}  // namespace tessera
