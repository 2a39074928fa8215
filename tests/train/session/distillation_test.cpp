// Distillation of a small model from another, against PyTorch in fp64 (make_distillation_reference.py).
#include "model/distillation.h"

#include <nlohmann/json.hpp>

#include "tests/fixed_in_few_bits.h"
#include "tests/reference_folder.h"

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

  DistillationRule rule(double reverse) const {
    return {.temperature = reference["temperature"],
            .cross_entropy = reference["cross_entropy"],
            .reverse = reverse};
  }
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
  struct Case {
    size_t run;
    int64_t micro_batch, chunk;
  };
  for (const auto& [number, micro_batch, chunk] :
       {Case{0, 4, 0}, {0, 1, 0}, {0, 2, 7}, {1, 4, 0}, {1, 2, 7}, {2, 1, 0}, {2, 2, 7}}) {
    const nlohmann::json& run = reference["runs"][number];
    const RunShape shape = this->shape(micro_batch, chunk, rule(run["reverse"]));
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
      const double loss = run["losses"][static_cast<size_t>(step - 1)],
                   norm = run["grad_norms"][static_cast<size_t>(step - 1)];
      losses = std::max(losses, std::abs(result.loss / loss - 1));
      norms = std::max(norms, std::abs(result.grad_norm / norm - 1));
      if (step == 1)
        gradients = worst_error(on_host(state.stream(), state.grads(), model, make), model, tensors,
                                fmt::format("gradient_{}.", number), worst);
    }
    fmt::print(
        "[ measured ] reverse {}, micro-batches of {}, chunks of {}: losses {:.1e}, norms {:.1e}, gradients "
        "{:.1e}\n",
        run["reverse"].get<double>(), micro_batch, chunk, losses, norms, gradients);
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

TEST(DistilledFromFewBits, ATeacherHasTheBitsOfItsWidenedValues) {
  expect_teachers_of_widened_values({.device = Device::kCpu}, DType::kF32);
}

TEST(DistilledFromFewBits, ThePlanIsTheStep) {
  for (const BaseForm base : kFewBits)
    for (const ModelConfig& teacher : small_teachers())
      expect_plan_is_the_step({}, distilled_shape(teacher, base, DType::kF32));
}

// 8, 4.5, 4.127 or 4.25 bits a number of a block in place of 16; beside them are the matrices of a block in
// bf16
TEST(DistilledFromFewBits, PlansSoManyBitsANumber) {
  const ModelConfig teacher{.vocab_size = 61, .context = 64, .layers = 12, .heads = 4, .channels = 256};
  const auto weights = [&](BaseForm base) {
    return plan_memory(distilled_shape(teacher, base, DType::kBF16), {.device = Device::kCuda, .arch = 90})
        .peak_of_each()[static_cast<int>(MemoryTag::kWeights)];
  };
  const int64_t block = 12 * 256 * 256, slack = 5 * 4096;
  for (const auto& [base, bits] : {std::pair{BaseForm::kFp8, 8.0},
                                   {BaseForm::kNf4, 4.5},
                                   {BaseForm::kNf4Double, 4 + 8.0 / 64 + 32.0 / 64 / 256},
                                   {BaseForm::kMxfp4, 4.25}})
    EXPECT_NEAR(static_cast<double>(weights(BaseForm::kAuto) - weights(base)),
                static_cast<double>(12 * block) * (2 - bits / 8) - 2.0 * block, slack)
        << name_of(base);
}

TEST(DistilledFromFewBits, WhatCannotBeStoredIsRefused) {
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  const auto refused = [&](const ModelConfig& teacher, BaseForm base,
                           const std::vector<std::string_view>& parts) {
    try {
      TrainState(*be, arena, distilled_shape(teacher, base, DType::kF32));
      ADD_FAILURE() << name_of(base);
    } catch (const Error& error) {
      EXPECT_TRUE(says(error.what(), parts)) << error.what();
    }
  };
  ModelConfig narrow = small_teachers()[0];
  narrow.channels = 40, narrow.head_dim = 20;
  refused(narrow, BaseForm::kNf4, {"40 inputs", "multiples of 64", "train.teacher_base=auto"});
}

// What a session of the teacher finds of each row, the sequences given to a training
struct Stored {
  Sequences sequences;

  Stored(const Distilled& of, int64_t K, double temperature) {
    const auto rows = of.reference["batch"].get<int64_t>(),
               T = of.reference["sequence_length"].get<int64_t>();
    const std::unique_ptr<Backend> be = make_cpu_backend();
    Arena arena = Arena::host();
    Session session(*be, arena,
                    {.model = read_model_config(of.teacher).model,
                     .batch = rows,
                     .sequence_length = T,
                     .classifier_chunk = 7,
                     .largest_logits = K});
    load_weights(of.teacher, session);
    sequences = {.tokens = of.tokens, .targets = of.targets, .documents = {}};
    Session::Largest found = session.largest_logits(sequences, rows, T, temperature);
    sequences.teacher_ids = found.ids, sequences.teacher_logits = found.values;
  }
};

TEST_F(Distilled, AllStoredLogitsAreTheTeacherInMemory) {
  const int64_t V = model.vocab_size;
  for (const double reverse : {0.0, 0.35}) {
    const Stored stored(*this, V, rule(reverse).temperature);
    for (const auto& [micro_batch, chunk] : {std::pair<int64_t, int64_t>{4, 0}, {2, 7}}) {
      RunShape shape = this->shape(micro_batch, chunk, rule(reverse));
      const std::unique_ptr<Backend> be = make_cpu_backend();
      Arena arena = Arena::host();
      TrainState whole(*be, arena, shape);
      shape.loss = distillation(rule(reverse), V), shape.teacher.reset();
      Arena own = Arena::host();
      TrainState state(*be, own, shape);
      EXPECT_FALSE(state.has_teacher());
      whole.initialize(0), state.initialize(0);
      load_weights(student, whole), load_weights(student, state), load_weights(teacher, whole.teacher());
      double losses = 0;
      for (int step = 1; step <= 10; ++step) {
        whole.step({.tokens = tokens, .targets = targets}, counted(targets), optimizer, 1e-2, step);
        state.step(stored.sequences, counted(targets), optimizer, 1e-2, step);
        const TrainState::StepResult a = whole.finish_step(), b = state.finish_step();
        losses = std::max(losses, std::abs(b.loss / a.loss - 1));
      }
      EXPECT_EQ(own.ledger().peak_bytes(), plan_memory(shape, be->traits()).peak_bytes());
      fmt::print("[ measured ] stored and computed logits: losses differ by {:.1e}\n", losses);
      EXPECT_LT(losses, tolerance::kPairLosses);
    }
  }
}

TEST_F(Distilled, StoredLogitsThatDoNotFitAreRefused) {
  Stored stored(*this, 5, 1);
  RunShape shape = this->shape(4, 0, {});
  shape.loss = distillation({}, 5), shape.teacher.reset();
  const std::unique_ptr<Backend> be = make_cpu_backend();
  Arena arena = Arena::host();
  TrainState state(*be, arena, shape);
  state.initialize(0);
  const auto step = [&](const SequencesView& sequences) {
    state.step(sequences, counted(targets), optimizer, 1e-2, 1);
  };
  step(stored.sequences);
  EXPECT_GT(state.finish_step().loss, 0);
  EXPECT_THROW(step({.tokens = tokens, .targets = targets}), Error);
  stored.sequences.teacher_ids[3] = static_cast<int32_t>(model.vocab_size);
  EXPECT_THROW(step(stored.sequences), Error);
}

}  // namespace
}  // namespace tessera::testing
