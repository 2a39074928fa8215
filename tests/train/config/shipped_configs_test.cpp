// Every configuration that ships must run on every device: planned here over an empty arena, without the
// device.
#include <gtest/gtest.h>

#include "kernels/attention/cudnn.h"
#include "train/config/load_config.h"
#include "train/memory/run_plan.h"
#include "train/run/run_data.h"

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
        if (parse_word<AttentionKind>("attention", attention) == AttentionKind::kCudnn &&
            (device.device == Device::kCpu || !attention::cudnn_built()))
          continue;
        SCOPED_TRACE(entry.path().string() + " on " + device.name + ", " + attention);
        const std::vector<std::string> overrides{"train.micro_batch=1",
                                                 std::string("model.attention=") + attention};
        const Config config = load_config(entry.path(), overrides);
        EXPECT_NO_THROW(EXPECT_GT(plan_memory(run_shape(config, device), device).peak_bytes(), 0));
      }
  }
  EXPECT_GE(configs, 6);
}

TEST(ShippedConfigs, FindSequencesEnoughInTheTextThatShips) {
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/configs")) {
    SCOPED_TRACE(entry.path().string());
    EXPECT_NO_THROW(RunData(load_config(entry.path(), {})));
  }
}

TEST(ShippedConfigs, LongContextFitsAsItsCommentsSay) {
  const DeviceTraits hopper{.device = Device::kCuda, .arch = 90, .name = "H200"};
  const MemoryLimit limit = given_memory(Device::kCuda, 141'000'000'000);
  const auto fits = [&](std::vector<std::string> overrides) {
    const Config config = load_config(TESSERA_SOURCE_DIR "/configs/long_context.yaml", overrides);
    return plan_run(config, hopper, limit).fits();
  };
  EXPECT_TRUE(fits({}));
  EXPECT_FALSE(fits({"model.attention=naive"}));
  const std::vector<std::string> million{"model.context=1048576", "train.tokens_per_step=1048576"};
  EXPECT_FALSE(fits(million));
  for (const char* recompute : {"mlp", "block"}) {
    std::vector<std::string> overrides = million;
    overrides.push_back(std::string("train.recompute=") + recompute);
    EXPECT_EQ(fits(overrides), recompute == std::string("block"));
  }
}

}  // namespace
}  // namespace tessera
