#include "model/update_rule.h"

namespace tessera {
namespace {

AdamW adamw_of(std::span<const UpdatedPart> parts, const UpdateStep& step) {
  AdamW op{.parts = {},
           .grad_norm = step.grad_norm,
           .max_norm = step.config.max_grad_norm,
           .learning_rate = step.learning_rate,
           .beta1 = step.config.beta1,
           .beta2 = step.config.beta2,
           .epsilon = step.config.epsilon,
           .weight_decay = step.config.weight_decay,
           .step = step.number,
           .verdict = step.verdict};
  for (const UpdatedPart& part : parts)
    op.parts.push_back({.param = part.weights,
                        .low = part.low,
                        .grad = part.gradient,
                        .m = part.state[0],
                        .v = part.state[1],
                        .decayed = part.decayed,
                        .random_key = part.random_key,
                        .first_element = part.first_element});
  return op;
}

}  // namespace

UpdateRule adamw(DType moments) {
  return {.name = "adamw",
          .state = {{"first_moment", moments}, {"second_moment", moments}},
          .run = [](const Stream& stream, std::span<const UpdatedPart> parts,
                    const UpdateStep& step) { stream.run(adamw_of(parts, step)); },
          .measure =
              [](const Stream& stream, std::span<const UpdatedPart> parts, const UpdateStep& step,
                 const MeasuredRanges& of) {
                const AdamW op = adamw_of(parts, step);
                stream.run(AdamWNorms{.step = op, .ranges = of.ranges, .sums = of.sums});
              }};
}

UpdateRule muon(const MuonConfig& config, DType moments) {
  UpdateRule rule = adamw(moments);
  rule.name = "muon";
  rule.state = {{"first_moment", moments}, {"second_moment", moments, StateOf::kOthers}};
  if (config.variance) rule.state.push_back({kRowSquares, DType::kF32, StateOf::kRows});
  rule.muon = config;
  return rule;
}

}  // namespace tessera
