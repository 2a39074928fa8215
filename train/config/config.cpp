#include "train/config/config.h"

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

ModelConfig Config::Model::resolved() const {
  ModelConfig model = *this;
  const ModelConfig derived = with_derived_sizes(model);
  if (model.kv_heads == 0) model.kv_heads = derived.kv_heads;
  if (model.head_dim == 0) model.head_dim = derived.head_dim;
  if (model.mlp_width == 0) model.mlp_width = derived.mlp_width;
  return model;
}

}  // namespace tessera
