#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/text.h"
#include "model/formats/family.h"
#include "model/formats/folder.h"
#include "model/formats/window_fields.h"
#include "model/rope.h"

namespace tessera {
namespace {

// The settings that would make `model` one of this family; empty: it is one.
std::vector<std::string> settings_for(const Family& family, const ModelConfig& model) {
  ModelConfig nearest = family.defaults;
  for_each_model_key_of(nearest, model, [&](std::string_view key, auto& ours, const auto& theirs) {
    if (sets(family, key)) ours = theirs;
  });
  const bool knows_mlp =
      std::ranges::any_of(family.mlps, [&](const MlpWord& word) { return word.value == model.mlp; });
  if (!knows_mlp) nearest.mlp = family.defaults.mlp;
  if (knows_bias(family, model.bias)) nearest.bias = model.bias;
  if (!knows_scaling(family, nearest.rope.scaling)) nearest.rope.scaling = RopeScaling::kNone;
  nearest.sparse = model.sparse;  // of a model_type of their own, see folder.cpp
  nearest.window = knows_windows(family, model.window) ? model.window : Windows();
  fill_computed(nearest);
  std::vector<std::string> settings;
  const ModelConfig supported = canonical(nearest), found = canonical(model);
  for_each_model_key_of(supported, found, [&](std::string_view key, const auto& ours, const auto& theirs) {
    if (ours == theirs) return;
    const std::string setting = setting_of(ours);
    const bool is_auto = key == "model.rope.local_theta" && setting == "0",
               is_none = key.starts_with("model.experts.") && setting == "0";
    settings.push_back(fmt::format("{}={}", key, is_auto ? "auto" : is_none ? "none" : setting));
  });
  // Its angles of blocks with a window are never scaled.
  if (&family == &kGemma3 && !model.window.all_full() && model.rope.scaling != RopeScaling::kNone &&
      model.rope.local_theta == 0)
    settings.push_back("model.rope.local_theta=a number");
  if (family.defaults.experts.shared_width > 0 && model.experts.shared_width == 0)
    settings.push_back("model.experts.shared_width=a number");
  if (!sets(family, "model.head_dim") && model.channels % model.heads != 0)
    settings.push_back("model.heads=a divisor of model.channels");
  return settings;
}

}  // namespace

std::span<const Family* const> families() {
  static constexpr const Family* kAll[] = {
      &kGpt2,  &kLlama,   &kMistral,  &kQwen2, &kQwen3,  &kGemma3,   &kGemma2,     &kPhi3,   &kOlmo2,
      &kBloom, &kMixtral, &kQwen3Moe, &kOlmoe, &kGptOss, &kQwen2Moe, &kGraniteMoe, &kTessera};
  return kAll;
}

const Family* find_family(std::string_view name) {
  const auto found =
      std::ranges::find(families(), name, [](const Family* one) { return std::string_view(one->name); });
  return found == families().end() ? nullptr : *found;
}

const Family* find_family_with_images(std::string_view name) {
  for (const Family* family : families())
    if (family->with_images.name && name == family->with_images.name) return family;
  return nullptr;
}

bool sets(const Family& family, std::string_view key) {
  const bool rotary = family.defaults.positions == Positions::kRope;
  return (rotary && is_angle(key) && key != "model.rope.local_theta") ||
         std::ranges::any_of(family.fields, [&](const Field& field) { return field.key == key; });
}

const Family& family_for(const ModelConfig& model) {
  size_t fewest = SIZE_MAX;
  std::string nearest;
  for (const Family* family : families()) {
    const std::vector<std::string> settings = settings_for(*family, model);
    if (settings.empty()) return *family;
    if (settings.size() > fewest || (family == &kTessera && settings.size() == fewest)) continue;
    if (settings.size() < fewest) nearest.clear();
    fewest = settings.size();
    nearest +=
        fmt::format("{}{} has {}", nearest.empty() ? "" : "; ", family->name, fmt::join(settings, ", "));
  }
  fail(
      "no family has such a model, those of Hugging Face's transformers or Tessera's own, so its checkpoints "
      "would have no config.json. The nearest: {}",
      nearest);
}

bool knows_bias(const Family& family, Bias bias) {
  switch (bias) {
    case Bias::kAll:
      if (family.biases.attention && family.biases.mlp) return true;
      break;
    case Bias::kAttention:
      if (family.biases.attention) return true;
      break;
    case Bias::kMlp:
      if (family.biases.mlp) return true;
      break;
    case Bias::kQkv:
    case Bias::kNone:
      break;
  }
  return bias == family.defaults.bias;
}

bool knows_scaling(const Family& family, RopeScaling scaling) {
  return scaling == RopeScaling::kNone ||
         std::ranges::find(family.scalings, scaling) != family.scalings.end();
}

void fill_computed(ModelConfig& model) {
  if (model.kv_heads == 0) model.kv_heads = model.heads;
  if (model.head_dim == 0) model.head_dim = model.channels / model.heads;
  if (model.mlp_width == 0) model.mlp_width = 4 * model.channels;
}

ModelConfig canonical(ModelConfig model) {
  if (model.query_scalar == 0) model.query_scalar = model.head_dim;
  if (!model.experts) model.experts = {};
  if (model.experts.rule().sums_to_one())  // whatever the order
    model.experts.router = Router::kSoftmax, model.experts.renormalise = true;
  if (!model.has_dense_blocks()) model.mlp_width = model.experts.width;  // which no block has
  if (model.positions != Positions::kRope) {
    model.rope = {};
    return model;
  }
  const Rope rope = model.rope;
  const double attention_factor = rope_attention_factor(model);
  Rope& kept = model.rope;
  kept = {.theta = rope.theta, .share = rope.share, .scaling = rope.scaling};
  const bool local_differs = rope.local_theta != rope.theta || rope.scaling != RopeScaling::kNone;
  if (!model.window.all_full() && local_differs) kept.local_theta = rope.local_theta;
  if (rope.scaling == RopeScaling::kNone) return model;
  if (rope.scaling != RopeScaling::kLongrope) kept.factor = rope.factor;
  if (rope.scaling == RopeScaling::kLinear) return model;
  kept.original_context = rope.original_context > 0 ? rope.original_context : model.context;
  if (rope.scaling == RopeScaling::kLlama3) {
    kept.low_frequency = rope.low_frequency;
    kept.high_frequency = rope.high_frequency;
    return model;
  }
  kept.attention_factor = attention_factor;
  if (rope.scaling == RopeScaling::kYarn) {
    kept.beta_fast = rope.beta_fast;
    kept.beta_slow = rope.beta_slow;
    kept.truncate = rope.truncate;
  } else {
    kept.short_factors = rope.short_factors;
    kept.long_factors = rope.long_factors;
  }
  return model;
}

bool says_nothing(const nlohmann::json& value, const nlohmann::json&) {
  return value == nlohmann::json(false) || ((value.is_object() || value.is_array()) && value.empty());
}

bool is_true(const nlohmann::json& value, const nlohmann::json&) { return value == nlohmann::json(true); }
bool is_one(const nlohmann::json& value, const nlohmann::json&) { return value == nlohmann::json(1); }
bool is_zero(const nlohmann::json& value, const nlohmann::json&) { return value == nlohmann::json(0); }

}  // namespace tessera
