// Every configuration that ships must run on every device: planned here over an empty arena, without the
// device.
#include <gtest/gtest.h>

#include "kernels/attention/cudnn.h"
#include "tests/model_variants.h"
#include "train/config/load_config.h"
#include "train/memory/run_plan.h"
#include "train/run/run_data.h"

namespace tessera {
namespace {

std::vector<std::filesystem::path> shipped() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(TESSERA_SOURCE_DIR "/configs"))
    if (entry.path().extension() == ".yaml") found.push_back(entry.path());
  return found;
}

TEST(ShippedConfigs, HaveKernelsOnEveryDevice) {
  const std::vector<DeviceTraits> devices{{.device = Device::kCuda, .arch = 80, .name = "A100"},
                                          {.device = Device::kCuda, .arch = 90, .name = "H200"},
                                          {}};
  int configs = 0;
  for (const std::filesystem::path& path : shipped()) {
    ++configs;
    const Config as_shipped = load_config(path, {});
    const bool for_cudnn = testing::cudnn_serves(as_shipped.model.resolved()) && !as_shipped.data.masks() &&
                           attention::cudnn_built();
    for (const DeviceTraits& device : devices)
      for (const char* attention : {"naive", "flash", "cudnn"}) {
        if (parse_word<AttentionKind>("attention", attention) == AttentionKind::kCudnn &&
            (device.device == Device::kCpu || !for_cudnn))
          continue;
        SCOPED_TRACE(path.string() + " on " + device.name + ", " + attention);
        const std::vector<std::string> overrides{"train.micro_batch=1",
                                                 std::string("model.attention=") + attention};
        const Config config = load_config(path, overrides);
        EXPECT_NO_THROW(EXPECT_GT(plan_memory(run_shape(config, device), device).peak_bytes(), 0));
      }
  }
  EXPECT_GE(configs, 14);
}

// long_context.yaml is for a GPU of 141 GB, as its first line says; models of over 16 billion parameters are
// for eight of 80.
TEST(ShippedConfigs, FitOnAGpuOf80Gigabytes) {
  const DeviceTraits hopper{.device = Device::kCuda, .arch = 90, .name = "H100"};
  const MemoryLimit limit = given_memory(Device::kCuda, 80'000'000'000);
  for (const std::filesystem::path& path : shipped()) {
    if (path.stem() == "long_context") continue;
    SCOPED_TRACE(path.string());
    Config config = load_config(path, {});
    if (config.model.resolved().parameters() > 16'000'000'000) config.ranks = 8;
    EXPECT_TRUE(plan_run(config, hopper, limit).fits());
  }
}

// GPT-2's keep their bits: the logits of a micro-batch are one tensor.
TEST(ShippedConfigs, DivideTheLogitsOfLargeVocabulariesAlone) {
  const DeviceTraits hopper{.device = Device::kCuda, .arch = 90, .name = "H100"};
  const auto chunk = [&](const std::string& name, std::vector<std::string> overrides = {}) {
    overrides.push_back("train.micro_batch=1");
    const Config config = load_config(std::string(TESSERA_SOURCE_DIR "/configs/") + name, overrides);
    return run_shape(config, hopper).classifier_chunk;
  };
  for (const char* name : {"gpt2_small.yaml", "gpt2_xl.yaml", "quickstart.yaml", "smollm2_135m.yaml"})
    EXPECT_EQ(chunk(name), 0) << name;
  EXPECT_EQ(chunk("gpt2_small.yaml", {"model.vocab_size=65536"}), 0);
  EXPECT_EQ(chunk("gpt2_small.yaml", {"model.vocab_size=65537"}), 4096);  // of 65664: 8176 rows have 1 GiB
  EXPECT_EQ(chunk("llama3.2_1b.yaml"), 4096);                             // of 128256
  EXPECT_EQ(chunk("llama3.2_1b.yaml", {"train.precision=fp32"}), 2048);
  EXPECT_EQ(chunk("qwen3_0.6b.yaml"), 2048);  // of 152064: 3530 rows have 1 GiB
  EXPECT_EQ(chunk("qwen3_0.6b.yaml", {"train.classifier_chunk=all"}), 0);
  EXPECT_EQ(chunk("qwen3_0.6b.yaml", {"train.classifier_chunk=100"}), 100);
  EXPECT_EQ(chunk("long_context.yaml"), 8192);  // its own
}

TEST(ShippedConfigs, FindSequencesEnoughInTheTextThatShips) {
  for (const std::filesystem::path& path : shipped()) {
    SCOPED_TRACE(path.string());
    const Config config = load_config(path, {});
    if (config.data.masks()) continue;  // trains on documents that ./prepare has written
    EXPECT_NO_THROW(RunData(config, config.data.shifts()));
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
