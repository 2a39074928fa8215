// Finetuning on packed conversations against transformers on padded ones: the loss and every gradient.
#include <nlohmann/json.hpp>

#include "tests/documents.h"
#include "tests/reference_folder.h"
#include "tests/tolerances.h"
#include "tests/train_steps.h"

namespace tessera::testing {
namespace {

constexpr int64_t kSftTokens = 30;  // of a packed sequence
constexpr int32_t kUncounted = -100;

// Each document of n tokens is n - 1 inputs and as many targets; side by side, in their order, as many as
// fit.
Sequences packed(const nlohmann::json& reference) {
  Sequences sequences;
  DocumentLengths lengths;
  int64_t room = 0;
  const auto pad = [&] {
    if (room > 0 && !lengths.empty()) lengths.back().push_back(room);
    sequences.tokens.insert(sequences.tokens.end(), static_cast<size_t>(room), 0);
    sequences.targets.insert(sequences.targets.end(), static_cast<size_t>(room), kNoTarget);
  };
  for (size_t d = 0; d < reference["tokens"].size(); ++d) {
    const auto tokens = reference["tokens"][d].get<std::vector<int32_t>>(),
               labels = reference["labels"][d].get<std::vector<int32_t>>();
    const int64_t inputs = std::ssize(tokens) - 1;
    if (inputs > room) {
      pad();
      lengths.emplace_back();
      room = kSftTokens;
    }
    lengths.back().push_back(inputs);
    room -= inputs;
    sequences.tokens.insert(sequences.tokens.end(), tokens.begin(), tokens.end() - 1);
    for (size_t t = 1; t < labels.size(); ++t)
      sequences.targets.push_back(labels[t] == kUncounted ? kNoTarget : labels[t]);
  }
  pad();
  sequences.documents = documents_of(lengths);
  return sequences;
}

// make_sft_reference.py makes them.
struct Finetuning : ::testing::TestWithParam<const char*> {};

TEST_P(Finetuning, CpuAgreesWithTransformersInEveryGradient) {
  const std::filesystem::path folder = fixture(std::string("sft/") + GetParam());
  if (!std::filesystem::exists(folder / "reference.json"))
    GTEST_SKIP() << folder << " is absent; python3 tests/fixtures/make_sft_reference.py " << GetParam()
                 << " makes it";
  std::ifstream file(folder / "reference.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  const TensorFiles tensors(folder, "reference");
  const std::filesystem::path weights = fixture(reference["weights"].get<std::string>());
  const ModelConfig model = read_model_config(weights).model;
  const Sequences sequences = packed(reference);
  const int64_t count = std::ssize(sequences.tokens) / kSftTokens;
  ASSERT_EQ(std::ssize(sequences.documents), 2 * count * kSftTokens);
  for (const AttentionKind attention : {AttentionKind::kNaive, AttentionKind::kFlash})
    for (const int64_t micro_batch : {count, int64_t{1}}) {
      const std::unique_ptr<Backend> be = make_cpu_backend();
      Arena arena = Arena::host();
      TrainState state(*be, arena,
                       {.model = model,
                        .micro_batch = micro_batch,
                        .micro_steps = count / micro_batch,
                        .sequence_length = kSftTokens,
                        .attention = attention,
                        .documents = true});
      state.initialize(0);
      load_weights(weights, state);
      state.step(sequences, counted(sequences.targets), kTestOptimizer, 1e-3, 1);
      std::string worst;
      HostTensors make;
      const double loss = reference["loss"], ours = state.finish_step().loss,
                   gradients = worst_error(on_host(state.stream(), state.grads(), model, make), model,
                                           tensors, "gradient.", worst);
      const std::string what =
          fmt::format("{}, {}, {} sequences of {}", GetParam(), name_of(attention), micro_batch, count);
      EXPECT_NEAR(ours / loss, 1, 1e-6) << what;
      EXPECT_LT(gradients, tolerance::kCpuAgainstPyTorch) << what << ": " << worst;
      fmt::print("[ measured ] {}: loss {:.1e}, gradients {:.1e} ({})\n", what, std::abs(ours / loss - 1),
                 gradients, worst);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Finetuning, ::testing::Values("gpt2", "llama", "llama_yarn", "qwen2", "qwen3"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace tessera::testing
