// The CPU against PyTorch: loss, every gradient, ten AdamW steps.
#include "tests/data/support.h"
#include "tests/model_variants.h"
#include "tests/python.h"
#include "tests/reference_folder.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

TEST(PyTorch, CpuAgreesInEveryGradientAndAfterTenSteps) {
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const int64_t micro_batch : {2, 1}) {
      const ReferenceErrors e = compare_with_pytorch({}, DType::kF32, attention, micro_batch);
      const std::string what = fmt::format("{}, micro-batch {}", name_of(attention), micro_batch);
      EXPECT_LT(e.first_loss, tolerance::kCpuAgainstPyTorch) << what;
      EXPECT_LT(e.gradients, tolerance::kCpuAgainstPyTorch) << what << ": " << e.worst_gradient;
      EXPECT_LT(e.losses, tolerance::kCpuAgainstPyTorch) << what;
      EXPECT_LT(e.grad_norms, tolerance::kCpuAgainstPyTorch) << what;
      EXPECT_LT(e.weights, tolerance::kCpuAgainstPyTorch) << what << ": " << e.worst_weight;
      fmt::print("[ measured ] {}: loss {:.1e}, gradients {:.1e} ({}), weights after ten steps {:.1e} ({})\n",
                 what, e.first_loss, e.gradients, e.worst_gradient, e.weights, e.worst_weight);
    }
}

// As train.init_from takes a folder: its config.json says which model it is.
struct PyTorchVariant : ::testing::TestWithParam<Variant> {};

TEST_P(PyTorchVariant, CpuAgreesInEveryGradientAndAfterThreeSteps) {
  const auto& [name, model] = GetParam();
  const std::filesystem::path folder = fixture("gpt2_variants/" + name);
  if (!std::filesystem::exists(folder))
    GTEST_SKIP() << folder << " is absent; python3 tests/fixtures/make_gpt2_reference.py " << name
                 << " makes it";
  EXPECT_EQ(read_model_config(folder).model, model);
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash}) {
    const ReferenceErrors e = compare_with_pytorch({}, DType::kF32, attention, 2, folder);
    const std::string what = fmt::format("{}, {}", name, name_of(attention));
    EXPECT_LT(e.first_loss, 1e-6) << what;
    EXPECT_LT(e.gradients, tolerance::kCpuAgainstPyTorch) << what << ": " << e.worst_gradient;
    EXPECT_LT(e.losses, tolerance::kCpuAgainstPyTorch) << what;
    EXPECT_LT(e.grad_norms, tolerance::kCpuAgainstPyTorch) << what;
    EXPECT_LT(e.weights, tolerance::kCpuAgainstPyTorch) << what << ": " << e.worst_weight;
    fmt::print("[ measured ] {}: loss {:.1e}, gradients {:.1e} ({}), weights after three steps {:.1e} ({})\n",
               what, e.first_loss, e.gradients, e.worst_gradient, e.weights, e.worst_weight);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PyTorchVariant, ::testing::ValuesIn(variants_of(kReferenceVariant)),
                         [](const auto& variant) { return variant.param.name; });

// The families after GPT-2; those with scaled rotary positions too.
struct PyTorchFamily : ::testing::TestWithParam<const char*> {};

TEST_P(PyTorchFamily, CpuAgreesInEveryGradientAndInTenLosses) {
  const std::filesystem::path folder = fixture(std::string("families/") + GetParam());
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const int64_t micro_batch : {2, 1}) {
      const ReferenceErrors e = compare_with_pytorch({}, DType::kF32, attention, micro_batch, folder);
      const std::string what =
          fmt::format("{}, {}, micro-batch {}", GetParam(), name_of(attention), micro_batch);
      // The norms of Gemma's fixtures multiply q and k by 1 + some 1: its scores, and their rounding, are
      // four times as large as those of others.
      const double allowed =
          tolerance::kCpuAgainstPyTorch * (std::string_view(GetParam()).starts_with("gemma") ? 4 : 1);
      EXPECT_LT(e.first_loss, allowed) << what;
      EXPECT_LT(e.gradients, allowed) << what << ": " << e.worst_gradient;
      EXPECT_LT(e.losses, allowed) << what;
      EXPECT_LT(e.grad_norms, allowed) << what;
      fmt::print("[ measured ] {}: loss {:.1e}, gradients {:.1e} ({}), losses of ten steps {:.1e}\n", what,
                 e.first_loss, e.gradients, e.worst_gradient, e.losses);
    }
}

INSTANTIATE_TEST_SUITE_P(All, PyTorchFamily, ::testing::ValuesIn(kFamilyFixtures),
                         [](const auto& family) { return std::string(family.param); });

// Sizes, groups, angles, windows and biases as nobody chose them; TESSERA_SEED draws others, and
// TESSERA_FAMILIES 30 of each family that it names. What a model makes of roundings is what transformers' own
// fp32 makes of them, up to chance.
struct RandomFamilies : InTempFolder {
  void expect_agreement(const std::string& count, const std::vector<std::string>& more = {});
};
void RandomFamilies::expect_agreement(const std::string& count, const std::vector<std::string>& more) {
  const char* seed = std::getenv("TESSERA_SEED");
  std::vector<std::string> arguments{TESSERA_SOURCE_DIR "/tests/fixtures/make_random_families.py", folder_,
                                     count, seed ? seed : "1"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProcessResult made = run_process(python_program(), arguments, {.folder = folder_});
  ASSERT_EQ(made.status, 0) << made.out << made.error;
  for (const auto& one : std::filesystem::directory_iterator(folder_)) {
    const std::string name = one.path().filename();
    SCOPED_TRACE(name);
    const ReferenceErrors e = compare_with_pytorch({}, DType::kF32, AttentionKind::kFlash, 1, one.path());
    std::ifstream file(one.path() / "reference.json");
    const nlohmann::json theirs = nlohmann::json::parse(file)["in_fp32"];
    const auto allowed = [&](const char* of, double times) {
      return tolerance::kCpuAgainstPyTorch + times * theirs[of].get<double>();
    };
    EXPECT_LT(e.first_loss, tolerance::kCpuAgainstPyTorch);
    EXPECT_LT(e.gradients, allowed("gradients", 4)) << e.worst_gradient;
    EXPECT_LT(e.losses, allowed("losses", 16));  // steps enlarge differences by chance
    EXPECT_LT(e.grad_norms, allowed("grad_norms", 16));
    for (const auto& [of, error] : theirs.items())
      EXPECT_LT(error.get<double>(), 1e-3) << of << ": too much for a comparison";
  }
}

TEST_F(RandomFamilies, AreThoseOfTransformers) {
  if (const auto missing = missing_in_python("torch, transformers, safetensors", folder_); !missing.empty())
    GTEST_SKIP() << missing;
  const char* families = std::getenv("TESSERA_FAMILIES");
  expect_agreement(families ? fmt::to_string(30 * (1 + std::ranges::count(std::string_view(families), ',')))
                            : "40");
}

// Of models with experts, whose adapters PEFT has saved: loss, every gradient, and ten steps
TEST_F(RandomFamilies, AdaptersAreThoseOfPeft) {
  if (const auto missing = missing_in_python("torch, transformers, safetensors, peft", folder_);
      !missing.empty())
    GTEST_SKIP() << missing;
  expect_agreement("24", {"adapters"});
}

}  // namespace
}  // namespace tessera::testing
