// Runs a model of tests/fixtures on a backend and says how far it is from PyTorch.
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/formats/folder.h"
#include "model/formats/peft.h"
#include "model/formats/pieces.h"
#include "model/formats/safetensors.h"
#include "model/formats/weights.h"
#include "tests/support.h"
#include "tests/train_steps.h"
#include "train/run/checkpoint.h"
#include "train/session/device.h"
#include "train/session/train_state.h"

namespace tessera::testing {

struct ReferenceErrors {
  double first_loss;  // relative
  double
      gradients;  // of the first batch: the worst tensor's largest error, relative to its largest magnitude
  double losses;  // over all AdamW steps, the worst, relative
  double grad_norms;
  double weights;                            // after all steps, like gradients; 0 where the folder has none
  std::string worst_gradient, worst_weight;  // the tensors' names
};

// In tests/fixtures/families; make_family_reference.py makes them
inline constexpr std::array kFamilyFixtures = {
    "llama",          "llama_tied", "llama_llama3",    "llama_linear",      "llama_yarn",
    "qwen2",          "qwen3",      "llama_biases",    "qwen3_biases",      "gemma2",
    "gemma3",         "olmo2",      "gemma3_images",   "mistral",           "qwen3_windows",
    "phi3",           "phi3_whole", "phi3_window",     "phi3_longrope",     "phi3_longrope_short",
    "llama_longrope", "qwen3_moe",  "qwen3_moe_dense", "qwen3_moe_balance", "olmoe",
    "olmoe_balance",  "mixtral",    "gpt_oss",         "gpt_oss_balance",   "bloom",
    "qwen2_moe",      "granitemoe"};

inline std::filesystem::path fixture(const std::string& name) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/fixtures" / name;
}

// "lora" of reference.json
inline LoraConfig lora_of(const nlohmann::json& fields, const ModelConfig& model) {
  LoraConfig lora{
      .rank = fields["rank"], .alpha = fields["alpha"], .parts = {}, .split_qkv = splits_qkv(model)};
  const std::string parts = fields["parts"];
  for (const auto& [word, part] : words_of(Adapted{}))
    if (parts.find(word) != parts.npos) lora.parts.add(part);
  return lora;
}

// The values of an adapter that PEFT has saved. Error: the file has others
inline void read_adapter(const std::filesystem::path& folder, TrainState& state) {
  const TensorFiles files(folder, "adapter_model");
  size_t tensors = 0;
  for (const ParamPlace& place : state.store().layout().places) {
    if (place.info.adapter == AdapterMatrix::kNone) continue;
    read_param(files, state.shape().model, place, "", state.store().writer());
    tensors += pieces_of(family_for(state.shape().model), state.shape().model, place.info).size();
  }
  check(tensors == files.tensors().size(), "{} has {} tensors, and the model's adapter {}", folder.string(),
        files.tensors().size(), tensors);
}

// The worst error of a set of parameters against the file's tensors `prefix` + name. Each is measured by
// its own largest value.
inline double worst_error(const std::vector<NamedTensor>& found, const ModelConfig& model,
                          const TensorFiles& tensors, const std::string& prefix, std::string& worst_name) {
  double worst = 0;
  for (const ParamPlace& place : ParamLayout(model, 1).places) {
    const ParamInfo& info = place.info;
    if (model.lora && info.adapter == AdapterMatrix::kNone) continue;
    const std::span<float> ours = floats(std::ranges::find(found, info.name, &NamedTensor::name)->tensor);
    read_param(tensors, model, {info, 0, 0, 0}, prefix, [&](const ParamPlace&, const Tensor& theirs) {
      const std::span<float> wanted = floats(theirs);
      size_t at = 0;
      for (const TensorPiece& piece : pieces_of(family_for(model), model, info)) {
        double error = 0, largest = 0;
        for (const auto end = at + static_cast<size_t>(piece.elements()); at < end; ++at) {
          const double want = wanted[at], difference = std::abs(ours[at] - want);
          if (!(difference <= error)) error = difference;
          largest = std::max(largest, std::abs(want));
        }
        const double relative = largest > 0 ? error / largest : error;  // of an expert that nobody chose: 0
        if (!(relative <= worst)) worst = relative, worst_name = piece.name;
      }
      for (; at < ours.size(); ++at) EXPECT_EQ(ours[at], 0) << "padding of " << info.name;
    });
  }
  return worst;
}

inline ReferenceErrors compare_with_pytorch(const DeviceTraits& device, DType dtype, AttentionKind attention,
                                            int64_t micro_batch,
                                            const std::filesystem::path& folder = fixture("gpt2_reference")) {
  std::ifstream file(folder / "reference.json");
  const nlohmann::json reference = nlohmann::json::parse(file);
  const TensorFiles tensors(folder, "reference");
  const int64_t steps = reference["steps"], B = reference["batch"], T = reference["sequence_length"];
  const auto tokens = reference["tokens"].get<std::vector<int32_t>>(),
             targets = reference["targets"].get<std::vector<int32_t>>(),
             documents = reference.value("documents", std::vector<int32_t>());  // as in Sequences
  ModelConfig model = read_model_config(folder).model;
  if (reference.contains("lora")) model.lora = lora_of(reference["lora"], model);

  const std::unique_ptr<Backend> be = make_backend(device);
  Arena arena = make_arena(device);
  TrainState state(
      *be, arena,
      {.model = model,
       .micro_batch = micro_batch,
       .micro_steps = B / micro_batch,
       .sequence_length = T,
       .dtype = dtype,
       .router_losses = {.balance = reference.value("balance", 0.0), .z = reference.value("z", 0.0)},
       .attention = attention,
       .freeze = model.lora ? Freeze::all_but_adapters() : Freeze{},
       .documents = !documents.empty()});
  state.initialize(0);
  load_weights(folder, state);
  if (model.lora) read_adapter(folder / "adapter", state);

  HostTensors make;
  const auto compare = [&](const std::vector<NamedTensor>& found, const std::string& prefix,
                           std::string& worst_name) {
    return worst_error(found, model, tensors, prefix, worst_name);
  };

  ReferenceErrors errors{};
  const OptimizerConfig optimizer{.beta1 = reference["beta1"],
                                  .beta2 = reference["beta2"],
                                  .epsilon = reference["epsilon"],
                                  .weight_decay = reference["weight_decay"],
                                  .max_grad_norm = reference["max_grad_norm"]};
  for (int64_t step = 0; step < steps; ++step) {
    const size_t first = static_cast<size_t>(step * B * T), count = static_cast<size_t>(B * T);
    state.step({.tokens = std::span(tokens).subspan(first, count),
                .targets = std::span(targets).subspan(first, count),
                .documents = documents.empty() ? std::span<const int32_t>()
                                               : std::span(documents).subspan(2 * first, 2 * count)},
               B * T, optimizer, reference["learning_rate"], step + 1);
    const TrainState::StepResult result = state.finish_step();
    const double loss = reference["losses"][static_cast<size_t>(step)],
                 norm = reference["grad_norms"][static_cast<size_t>(step)];
    if (step == 0) {
      errors.first_loss = std::abs(result.loss - loss) / loss;
      errors.gradients =
          compare(on_host(state.stream(), state.grads(), model, make), "gradient.", errors.worst_gradient);
    }
    errors.losses = std::max(errors.losses, std::abs(result.loss - loss) / loss);
    errors.grad_norms = std::max(errors.grad_norms, std::abs(result.grad_norm - norm) / norm);
  }
  const auto after = tensors.tensors().lower_bound("after.");
  if (after != tensors.tensors().end() && after->first.starts_with("after."))
    errors.weights = compare(masters_on_host(state, make), "after.", errors.worst_weight);
  return errors;
}

}  // namespace tessera::testing
