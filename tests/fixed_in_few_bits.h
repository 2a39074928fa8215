// Teachers whose matrices are stored in FP8 or in 4 bits, on any device.
#pragma once

#include "model/distillation.h"
#include "tests/lora_fp8.h"
#include "tests/says.h"

namespace tessera::testing {

inline constexpr BaseForm kFewBits[] = {BaseForm::kFp8, BaseForm::kNf4, BaseForm::kNf4Double,
                                        BaseForm::kMxfp4};

// With biases, with heads that share keys, and with experts
inline std::vector<ModelConfig> small_teachers() {
  ModelConfig gpt2{.vocab_size = 61, .context = 24, .layers = 3, .heads = 2, .channels = 64};
  gpt2.head_dim = 64;
  ModelConfig qwen3 = with_qwen3_parts(gpt2);
  qwen3.kv_heads = 1, qwen3.mlp_width = 192;
  ModelConfig experts = with_experts(with_llama_parts(gpt2));
  experts.experts.width = 64;
  return {gpt2, qwen3, experts};
}

// A small student of that teacher
inline RunShape distilled_shape(const ModelConfig& teacher, BaseForm base, DType dtype) {
  const ModelConfig student{.vocab_size = 61, .context = 24, .layers = 2, .heads = 1, .channels = 64};
  return {.model = student,
          .micro_batch = 2,
          .micro_steps = 2,
          .sequence_length = 24,
          .dtype = dtype,
          .loss = distillation({.temperature = 1.5, .reverse = 0.25}),
          .teacher = teacher,
          .teacher_base = base,
          .classifier_chunk = 7,
          .cuda_graphs = true};
}

// A teacher whose values are stored, and one in the dtype of the activations that has these values, widened:
// the same steps, to the bit.
inline void expect_teachers_of_widened_values(const DeviceTraits& device, DType dtype) {
  for (const BaseForm base : kFewBits)
    for (const ModelConfig& teacher : small_teachers()) {
      SCOPED_TRACE(fmt::format("{}, {}", name_of(base), teacher.experts ? "experts" : name_of(teacher.mlp)));
      HostTensors make;
      LoraSteps stored(device, distilled_shape(teacher, base, dtype)),
          plain(device, distilled_shape(teacher, BaseForm::kAuto, dtype)),
          unrounded(device, distilled_shape(teacher, BaseForm::kAuto, dtype));
      Session &from = stored.state.teacher(), &to = plain.state.teacher();
      from.initialize(5), unrounded.state.teacher().initialize(5);
      const std::vector<NamedTensor> values = weights_read(from.store(), from.stream(), make);
      int64_t kept = 0;
      for (const ParamPlace& place : from.store().layout().places) {
        to.store().writer()(place, values[place.index].tensor);
        kept += place.stored == StoredAs::kOnly;
      }
      EXPECT_GE(kept, 2 * teacher.layers);  // those of experts, of attention and MLPs
      for (int step = 1; step <= 3; ++step) {
        const TrainState::StepResult one = stored.step(step), other = plain.step(step);
        EXPECT_EQ(one.loss, other.loss) << "step " << step;
        EXPECT_EQ(one.grad_norm, other.grad_norm) << "step " << step;
        if (step == 1) {
          EXPECT_NE(one.loss, unrounded.step(1).loss) << "nothing is rounded";
        }
      }
    }
}

}  // namespace tessera::testing
