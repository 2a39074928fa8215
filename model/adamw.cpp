#include <algorithm>

#include "model/muon.h"
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

ParamGroup adamw_group(bool (*has)(const ParamInfo&), DType moments) {
  return {.has = has,
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

}  // namespace

std::vector<StateTensor> UpdateRule::state() const {
  std::vector<StateTensor> all;
  for (const ParamGroup& group : groups)
    for (const StateTensor& one : group.state)
      if (std::ranges::find(all, one.name, &StateTensor::name) == all.end()) all.push_back(one);
  return all;
}

bool UpdateRule::keeps(const std::string& tensor, const ParamInfo& info) const {
  return std::ranges::any_of(groups, [&](const ParamGroup& group) {
    return group.has(info) && std::ranges::find(group.state, tensor, &StateTensor::name) != group.state.end();
  });
}

UpdateRule adamw(DType moments) { return {.name = "adamw", .groups = {adamw_group(is_any, moments)}}; }

UpdateRule muon(const MuonConfig& config, DType moments) {
  ParamGroup matrices{.has = is_matrix_of_block,
                      .state = {{"first_moment", moments}},
                      .run = nullptr,
                      .whole_matrices = [config](Arena& arena, ParamStore& store) {
                        return std::make_unique<Muon>(arena, store, config);
                      }};
  if (config.variance) matrices.state.push_back({kRowSquares, DType::kF32, /*of_rows=*/true});
  const auto others = [](const ParamInfo& info) { return !is_matrix_of_block(info); };
  return {.name = "muon", .groups = {adamw_group(others, moments), matrices}};
}

}  // namespace tessera
