// Distillation of a small model from another, against PyTorch in fp64 (make_distillation_reference.py).
#include "model/distillation.h"

#include <nlohmann/json.hpp>

#include "tests/reference_folder.h"
#include "tests/tolerances.h"

namespace tessera::testing {
namespace {

struct Distilled : ::testing::Test {
  std::filesystem::path folder = fixture("distillation"), student = fixture("families/llama"),
                        teacher = fixture("families/qwen3");
  nlohmann::json reference = nlohmann::json::parse(std::ifstream(folder / "reference.json"));
  ModelConfig model = read_model_config(student).model;
  std::vector<int32_t> tokens = reference["tokens"], targets = reference["targets"];
  OptimizerConfig optimizer{.beta1 = reference["beta1"],
                            .beta2 = reference["beta2"],
                            .epsilon = reference["epsilon"],
                            .weight_decay = reference["weight_decay"],
                            .max_grad_norm = reference["max_grad_norm"]};

  RunShape shape(int64_t micro_batch, int64_t chunk, const DistillationRule& rule) const {
    return {.model = model,
            .micro_batch = micro_batch,
            .micro_steps = reference["batch"].get<int64_t>() / micro_batch,
            .sequence_length = reference["sequence_length"],
            .loss = distillation(rule),
            .teacher = read_model_config(teacher).model,
            .classifier_chunk = chunk,
            .fused_head = true};  // there is no fused form: the separate one
  }
};

TEST_F(Distilled, StepsAreThoseOfPyTorch) {
  const TensorFiles tensors(folder, "reference");
  for (const auto& [micro_batch, chunk] : {std::pair<int64_t, int64_t>{4, 0}, {1, 0}, {2, 7}}) {
    const RunShape shape =
        this->shape(micro_batch, chunk,
                    {.temperature = reference["temperature"], .cross_entropy = reference["cross_entropy"]});
    expect_plan_is_the_step({}, shape);
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = Arena::host();
    TrainState state(*be, arena, shape);
    state.initialize(0);
    load_weights(student, state);
    load_weights(teacher, state.teacher());
    HostTensors make;
    double losses = 0, norms = 0, gradients = 0;
    std::string worst;
    for (int step = 1; step <= reference["steps"]; ++step) {
      state.step({.tokens = tokens, .targets = targets}, counted(targets), optimizer,
                 reference["learning_rate"], step);
      const TrainState::StepResult result = state.finish_step();
      const double loss = reference["losses"][static_cast<size_t>(step - 1)],
                   norm = reference["grad_norms"][static_cast<size_t>(step - 1)];
      losses = std::max(losses, std::abs(result.loss / loss - 1));
      norms = std::max(norms, std::abs(result.grad_norm / norm - 1));
      if (step == 1)
        gradients = worst_error(on_host(state.stream(), state.grads(), model, make), model, tensors,
                                "gradient.", worst);
    }
    fmt::print(
        "[ measured ] micro-batches of {}, chunks of {}: losses {:.1e}, norms {:.1e}, gradients {:.1e}\n",
        micro_batch, chunk, losses, norms, gradients);
    EXPECT_LT(losses, tolerance::kPairLosses);
    EXPECT_LT(norms, tolerance::kCpuAgainstPyTorch);
    EXPECT_LT(gradients, tolerance::kCpuAgainstPyTorch) << worst;
  }
}

TEST_F(Distilled, AModelThatIsItsTeacherHasNothingToLearn) {
  RunShape shape = this->shape(2, 0, {.temperature = 1.5});
  shape.teacher = model;
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state(*be, arena, shape);
  load_weights(student, state);
  load_weights(student, state.teacher());
  state.step({.tokens = tokens, .targets = targets}, counted(targets), optimizer, 1e-3, 1);
  const TrainState::StepResult result = state.finish_step();
  EXPECT_NEAR(result.loss, 0, 1e-9);
  EXPECT_NEAR(result.grad_norm, 0, 1e-9);
  shape.teacher = model;
  present(shape.teacher).vocab_size = 62;
  EXPECT_THROW(TrainState(*be, arena, shape), Error);
}

}  // namespace
}  // namespace tessera::testing
