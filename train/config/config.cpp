#include "train/config/config.h"

#include <algorithm>
#include <cmath>

namespace tessera {
namespace {

// What auto means, in a model of these heads and channels
ModelConfig with_derived_sizes(ModelConfig model) {
  model.kv_heads = model.heads;
  model.head_dim = model.channels / model.heads;
  model.mlp_width = 4 * model.channels;
  return model;
}

}  // namespace

Config::Model::Model() : Model(preset_model(Preset::kGpt2Small)) {}

Config::Model::Model(const ModelConfig& model) : ModelConfig(model) {
  const ModelConfig derived = with_derived_sizes(model);
  if (kv_heads == derived.kv_heads) kv_heads = 0;
  if (head_dim == derived.head_dim) head_dim = 0;
  if (mlp_width == derived.mlp_width) mlp_width = 0;
}

int64_t WarmUp::of(int64_t all_steps) const {
  return percent > 0 ? std::llround(percent * static_cast<double>(all_steps) / 100) : steps;
}

int64_t Config::sequence_length() const {
  if (train.sequence_length > 0) return train.sequence_length;
  int64_t longest = 0;
  for (const ContextPhase& phase : train.context_schedule) longest = std::max(longest, phase.sequence_length);
  return longest > 0 ? longest : model.context;
}

size_t Config::phase_after(int64_t step) const {
  size_t phase = 0;
  while (phase + 1 < phases() && train.context_schedule[phase + 1].from_step <= step) ++phase;
  return phase;
}

bool Config::begins_phase(int64_t step) const {
  return step > 0 && phase_after(step) != phase_after(step - 1);
}

Config Config::of_phase(size_t phase) const {
  Config config = *this;
  if (!train.context_schedule.empty())
    config.train.sequence_length = train.context_schedule[phase].sequence_length;
  return config;
}

ModelConfig Config::Model::resolved() const {
  ModelConfig model = *this;
  const ModelConfig derived = with_derived_sizes(model);
  if (model.kv_heads == 0) model.kv_heads = derived.kv_heads;
  if (model.head_dim == 0) model.head_dim = derived.head_dim;
  if (model.mlp_width == 0) model.mlp_width = derived.mlp_width;
  return model;
}

}  // namespace tessera
