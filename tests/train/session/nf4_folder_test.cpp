// Folders whose matrices bitsandbytes stored in NF4: tests/fixtures/make_nf4_folders.py
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/base/json_text.h"
#include "model/formats/bitsandbytes.h"
#include "model/formats/safetensors.h"
#include "model/formats/weights.h"
#include "tests/lora_four_bits.h"
#include "tests/says.h"
#include "train/run/checkpoint.h"
#include "train/run/nf4_base.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;

const fs::path kFolders = fs::path(TESSERA_SOURCE_DIR) / "tests/fixtures/nf4";

struct Text {
  std::vector<int32_t> tokens, targets;
  Text() {
    for (int32_t i = 0; i < 23; ++i) tokens.push_back(i * 7 % 29), targets.push_back((i + 1) * 7 % 29);
  }
  SequencesView view() const { return {.tokens = tokens, .targets = targets}; }
};

RunShape shape_of(const fs::path& folder) {
  return {
      .model = read_model_config(folder).model, .micro_batch = 1, .micro_steps = 1, .sequence_length = 23};
}

double loss_of(const fs::path& folder) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  Session session(*be, arena, shape_of(folder).session());
  load_weights(folder, session);
  return session.evaluate(Text().view(), 1);
}

Nf4Base found_as(BaseForm form, const fs::path& folder, const ModelConfig& model) {
  const Nf4Folder found = compare_nf4_base(WeightsFolder(folder, model.base()), model, false);
  return form == BaseForm::kNf4 ? found.nf4 : found.nf4_double;
}

// A run with the base in `form` has the folder's values, to the bit, and so its loss.
void expect_kept(const fs::path& folder, BaseForm form) {
  for (const bool on_host : {false, true}) {
    SCOPED_TRACE(fmt::format("{}, {}", name_of(form), on_host ? "on the host" : "on the device"));
    RunShape shape = shape_of(folder);
    shape.model = with_adapters(shape.model, 4), shape.offload.weights = on_host;
    const Nf4Base found = found_as(form, folder, shape.model);
    EXPECT_TRUE(found.is_kept()) << found.difference;
    EXPECT_GT(found.kept, 0);
    LoraSteps kept({.device = Device::kCpu}, lora_four_bits_shape(shape, form));
    load_base(folder, kept.state, {});
    EXPECT_EQ(kept.state.session().evaluate(Text().view(), 1), loss_of(folder));
    HostTensors make;
    const std::vector<NamedTensor> values = weights_read(kept.state, make);
    load_weights(folder, shape.model.base(), [&](const ParamPlace& place, const Tensor& expected) {
      const auto& one = *std::ranges::find(values, place.info.name, &NamedTensor::name);
      EXPECT_EQ(std::memcmp(one.tensor.data, expected.data, expected.bytes()), 0) << one.name;
    });
  }
}

// The loss is that of transformers, and keeping the matrices in NF4 changes no bit of it.
TEST(Nf4Folder, HasTheLossOfTransformers) {
  const nlohmann::json expected = nlohmann::json::parse(std::ifstream(kFolders / "expected.json"));
  for (const char* name : {"plain", "nested"}) {
    SCOPED_TRACE(name);
    const double loss = loss_of(kFolders / name);
    EXPECT_NEAR(loss, expected[name].get<double>(), 1e-5);
    EXPECT_GT(std::abs(loss - expected["before"].get<double>()), 1e-3);
    expect_kept(kFolders / name, BaseForm::kNf4);
  }
  expect_kept(kFolders / "nested", BaseForm::kNf4Double);
}

std::string difference(const fs::path& folder, BaseForm form) {
  return found_as(form, folder, with_adapters(read_model_config(folder).model, 4)).difference;
}

TEST(Nf4Folder, ScalesInFp32WouldBeRounded) {
  EXPECT_TRUE(says(difference(kFolders / "plain", BaseForm::kNf4Double), {"q_proj.weight", "fp32"}));
}

TEST(Nf4Folder, SaysHowItIsStored) {
  const std::vector<std::string> notices =
      check_weights(kFolders / "nested", read_model_config(kFolders / "nested").model);
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_TRUE(says(notices[0], {"14", "NF4"}));
  EXPECT_TRUE(is_in_nf4(kFolders / "nested"));
  EXPECT_FALSE(is_in_nf4(kFolders.parent_path() / "families/llama"));
}

class DamagedNf4 : public ::testing::Test {
 protected:
  fs::path folder_ = fs::path(::testing::TempDir()) / fmt::format("damaged nf4 {}", getpid());
  void SetUp() override {
    fs::remove_all(folder_);
    fs::copy(kFolders / "nested", folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  // In the header or among the states, the same number of bytes
  void replace(const std::string& from, const std::string& to) {
    std::ifstream in(folder_ / "model.safetensors", std::ios::binary);
    std::string all{std::istreambuf_iterator<char>(in), {}};
    const size_t at = all.find(from);
    ASSERT_NE(at, all.npos);
    ASSERT_EQ(from.size(), to.size());
    all.replace(at, from.size(), to);
    std::ofstream(folder_ / "model.safetensors", std::ios::binary) << all;
  }
  void refused(std::initializer_list<std::string_view> facts) {
    try {
      check_weights(folder_, read_model_config(folder_).model);
      FAIL() << "was read";
    } catch (const Error& error) {
      EXPECT_TRUE(says(error.what(), facts));
    }
  }
};

TEST_F(DamagedNf4, OtherNumbersAreRefused) {
  replace("\"quant_type\": \"nf4\"", "\"quant_type\": \"fp4\"");
  refused({"quant_state.bitsandbytes__nf4", "quant_type", "nf4", "fp4"});
}
TEST_F(DamagedNf4, AnotherShapeIsRefused) {
  replace("\"shape\": [64, 64]", "\"shape\": [63, 64]");
  refused({"quant_state.bitsandbytes__nf4", "[64, 64]", "[63,64]"});
}
TEST_F(DamagedNf4, ATensorWithoutItsScalesIsRefused) {
  replace("q_proj.weight.absmax\"", "q_proj.weight.absmay\"");
  refused({"q_proj.weight.absmax"});
}
TEST_F(DamagedNf4, OtherBlocksOfScalesAreRefused) {
  replace("\"nested_blocksize\": 256", "\"nested_blocksize\": 056");
  refused({"quant_state.bitsandbytes__nf4"});
}
// Scales below 0, which no rounding of values makes
TEST_F(DamagedNf4, OtherMeansOfScalesAreKept) {
  replace("\"nested_offset\": 0", "\"nested_offset\":-0");
  for (const BaseForm form : {BaseForm::kNf4, BaseForm::kNf4Double}) expect_kept(folder_, form);
}
TEST_F(DamagedNf4, OtherCodesOfScalesAreNotKept) {
  const float before = small_scale_value(200), other = 0.5f;
  const auto text = [](const float& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  replace(text(before), text(other));
  EXPECT_TRUE(
      says(difference(folder_, BaseForm::kNf4Double), {"code 200", "0.5", fmt::format("{}", before)}));
  expect_kept(folder_, BaseForm::kNf4);
}
TEST_F(DamagedNf4, OtherKindsOfQuantisationAreRefused) {
  nlohmann::json config = read_json(folder_ / "config.json");
  config["quantization_config"]["bnb_4bit_quant_type"] = "fp4";
  write_json(folder_ / "config.json", config);
  refused({"quantization_config", "bitsandbytes", "NF4"});
}

}  // namespace
}  // namespace tessera::testing
