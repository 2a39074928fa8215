// train.gemm_dtype and train.fp8: what is read, and what is refused.
#include "tests/says.h"
#include "tests/train/config/config_file.h"
#include "train/session/from_config.h"

namespace tessera {
namespace {

using Fp8Keys = ConfigFile;

constexpr const char* kFp8 = "train:\n  matmul: fp8\n";

TEST_F(Fp8Keys, AreRead) {
  EXPECT_FALSE(load("").train.fp8);
  EXPECT_EQ(load(kFp8).train.fp8, (Fp8Config{.gemm_dtype = GemmDtype::kFp8}));
  EXPECT_EQ(load("train:\n  matmul: fp8\n  fp8: {scaling: current, edges: true, dw: true}\n",
                 {"train.fp8.head=true"})
                .train.fp8,
            (Fp8Config{.gemm_dtype = GemmDtype::kFp8,
                       .scaling = Fp8Scaling::kCurrent,
                       .edges = true,
                       .head = true,
                       .dw = true}));
}

TEST_F(Fp8Keys, RefuseWhatHasNoEffect) {
  for (const char* setting :
       {"train.fp8.scaling=current", "train.fp8.edges=true", "train.fp8.head=true", "train.fp8.dw=true"}) {
    const std::string message = refusal("", {setting});
    EXPECT_NE(message.find("no effect with train.gemm_dtype"), std::string::npos) << message;
    EXPECT_NE(message.find("set train.gemm_dtype=fp8 too"), std::string::npos) << message;
  }
  const std::string nothing = refusal(kFp8, {"model.layers=2"});
  EXPECT_NE(nothing.find("set train.fp8.edges=true too"), std::string::npos) << nothing;
  load(kFp8, {"model.layers=2", "train.fp8.edges=true"});
  load(kFp8, {"model.layers=3"});
}

TEST_F(Fp8Keys, RefuseWhatDoesNotFit) {
  const auto expect = [&](const std::vector<std::string>& settings, const char* part) {
    const std::string message = refusal(kFp8, settings);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  load(kFp8, {"train.lora.rank=8"});
  expect({"train.lora.rank=8", "train.fp8.dw=true"}, "no effect with train.lora.rank 8");
  expect({"train.freeze=embeddings"}, "together with train.freeze");
  expect({"model.channels=360", "model.heads=3"}, "model.channels 360");
  expect({"model.mlp_width=1000"}, "model.mlp_width 1000");
  expect({"model.channels=48", "model.heads=3", "model.head_dim=8", "model.mlp_width=64",
          "model.norm=rmsnorm", "model.positions=rope", "model.mlp=swiglu", "model.bias=none"},
         "follow from model.head_dim");
}

// Experts are multiplied as without FP8, so their width may be any; that of a shared expert may not.
TEST_F(Fp8Keys, TakeModelsWithExperts) {
  const auto with = [](std::initializer_list<const char*> settings) {
    std::vector<std::string> all{"model.norm=rmsnorm",    "model.positions=rope",  "model.mlp=swiglu",
                                 "model.bias=qkv",        "model.experts.count=4", "model.experts.active=2",
                                 "model.experts.width=24"};
    all.insert(all.end(), settings.begin(), settings.end());
    return all;
  };
  load(kFp8, with({"model.experts.shared_width=48"}));
  load(kFp8, with({"model.experts.shared_width=48", "train.lora.rank=8"}));
  const std::string message = refusal(kFp8, with({"model.experts.shared_width=40"}));
  EXPECT_NE(message.find("model.experts.shared_width 40"), std::string::npos) << message;
}

struct Fp8Devices : Fp8Keys {
  std::string refused(const DeviceTraits& device, const std::vector<std::string>& settings = {}) {
    const Config config = load(kFp8, settings);
    try {
      run_shape(config, device, MemoryLimit{});
    } catch (const Error& error) {
      return error.what();
    }
    return "was not refused";
  }
};

TEST_F(Fp8Devices, RefuseFp32AndOlderGpus) {
  const DeviceTraits ampere{Device::kCuda, 80, "A100"}, ada{Device::kCuda, 89, "L40S"},
      hopper{Device::kCuda, 90, "H100"};
  EXPECT_EQ(refused({}), "was not refused");
  EXPECT_EQ(refused(ada), "was not refused");
  EXPECT_EQ(refused(hopper), "was not refused");
  EXPECT_TRUE(says(refused(ampere), {"train.gemm_dtype=fp8", "8.9", "A100", "8.0", "train.gemm_dtype=bf16"}));
  EXPECT_TRUE(says(refused(hopper, {"train.precision=fp32"}),
                   {"train.gemm_dtype=fp8", "bf16", "train.precision", "fp32", "train.precision=auto",
                    "train.gemm_dtype=bf16"}));
  EXPECT_TRUE(says(
      refused(hopper, {"train.sequence_length=1000", "train.tokens_per_step=1000000", "train.micro_batch=1"}),
      {"train.gemm_dtype=fp8", "16", "1", "1000", "1000", "train.micro_batch", "16"}));
  EXPECT_TRUE(says(refused(hopper, {"train.mlp_chunk=1000"}),
                   {"train.gemm_dtype=fp8", "train.mlp_chunk", "0", "auto", "16", "1000"}));
  EXPECT_NE(refused(hopper, {"train.fp8.head=true", "train.classifier_chunk=1000"})
                .find("classifier_chunk=all or a multiple of 16, found 1000"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
